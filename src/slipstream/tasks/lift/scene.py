"""The scene for cameras."""

MATERIALS = ("arm", "pads", "cube", "mat", "other_mat", "motors", "clutter", "other_clutter", "target")
CAMERAS = ("wrist", "scene")
CLUTTER = ((0.10, 0.27, 0.03), (0.36, -0.22, 0.02))
