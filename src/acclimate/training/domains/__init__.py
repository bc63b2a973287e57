"""Training on all domains but one, as in DomainBed: ERM and CORAL, with frozen BatchNorm.

settings = DomainSettings(
    objective="coral", model="resnet50", data="pacs", test_domain="sketch", pretrained=True
)
result = train(settings, "coral-sketch.safetensors")
result.validation                                  # accuracy on 20 % of each training domain
model = load_trained("coral-sketch.safetensors")   # the weights that were best there

Splits, draws of hyper-parameters, sampling, losses and optimizer are DomainBed's. What differs:

- There are 5000 steps and a check after every 300 and the last; DomainBed has 5001, and checks
  after the first, the 301st and so on. The weights of the best check are kept, which T3A calls
  "IID best".
- Random crops are taken from images that were brought to their size; see `objective.VIEWS`.
- Images are normalised as the model expects: by ImageNet's statistics for `resnet50`, by its own
  for others. Dropout and its like that a model has of its own stay in use.
- On several devices, CORAL compares the images of each device among themselves.
"""
