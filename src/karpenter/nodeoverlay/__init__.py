"""NodeOverlays (feature gate NodeOverlay): validation of overlays, and the provider decorator that applies them.

The pure rules are in ``karpenter.instancetypes.overlay_application``.
"""
