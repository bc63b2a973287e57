"""What published files must be: MD5 of CIFAR-10-C and CIFAR-100-C, SHA-256 of the frost."""

from __future__ import annotations

_CIFAR_C = """
gaussian_noise ecaf8b9a2399ffeda7680934c33405fd ecc4d366eac432bdf25c024086f5e97d
shot_noise 3a7239bb118894f013d9bf1984be7f11 b0a1fa6e1e465a747c1b204b1914048a
impulse_noise 2090e01c83519ec51427e65116af6b1a 3b3c210ddfa0b5cb918ff4537a429fef
defocus_blur 7d1322666342a0702b1957e92f6254bc d923e3d9c585a27f0956e2f2ad832564
glass_blur 7361fb4019269e02dbf6925f083e8629 0bf384f38e5ccbf8dd479d9059b913e1
motion_blur fffa5f852ff7ad299cfe8a7643f090f4 732a7e2e54152ff97c742d4c388c5516
zoom_blur 6ea8e63f1c5cdee1517533840641641b 0204613400c034a81c4830d5df81cb82
snow bb238de8555123da9c282dea23bd6e55 0237be164583af146b7b144e73b43465
frost 31f6ab3bce1d9934abfb0cc13656f141 3a39c6823bdfaa0bf8b12fe7004b8117
fog 7b397314b5670f825465fbcd1f6e9ccd 4efc7ebd5e82b028bdbe13048e3ea564
brightness 0a81ef75e0b523c3383219c330a85d48 f22d7195aecd6abb541e27fca230c171
contrast 3c8262171c51307f916c30a3308235a8 322bb385f1d05154ee197ca16535f71e
elastic_transform 9421657c6cd452429cf6ce96cc412b5f a0792bd6581f6810878be71acedfc65a
pixelate 0f14f7e2db14288304e1de10df16832f 96c00c60f144539e14cffb02ddbd0640
jpeg_compression 2b9cc4c864e0193bb64db8d7728f8187 c851b7f1324e1d2ffddeb76920576d11
speckle_noise ef00b87611792b00df09c0b0237a1e30 e3f215b1a0f9fd9fd6f0d1cf94a7ce99
gaussian_blur c33370155bc9b055fb4a89113d3c559d 5204ba0d557839772ef5a4196a052c3e
spatter 8a5a3903a7f8f65b59501a6093b4311e 12ccf41d62564d36e1f6a6ada5022728
saturate 1cfae0964219c5102abbb883e538cc56 c0697e9fdd646916a61e9c312c77bf6b
labels c439b113295ed5254878798ffe28fd54 bb4026e9ce52996b95f439544568cdb2
"""
_ROWS = [line.split() for line in _CIFAR_C.strip().splitlines()]

CIFAR10C_MD5: dict[str, str] = {name: md5 for name, md5, _ in _ROWS}
CIFAR100C_MD5: dict[str, str] = {name: md5 for name, _, md5 in _ROWS}

FROST_SHA256: dict[str, str] = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}
