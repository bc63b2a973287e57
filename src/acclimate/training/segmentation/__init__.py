"""Training for segmentation: DeepLabV3+, and RobustNet by instance selective whitening.

settings = SegmentationSettings(
    model="deeplabv3plus-efficientnet-lite0", data="camvid", pretrained=True, objective="isw"
)
result = train(settings, "camvid-isw.safetensors")
result.miou                                          # on the validation images, in percent
model = load_dense("camvid-isw.safetensors")         # of acclimate.zoo.segmentation
"""
