"""The driver of ``weir run --deploy-mode cluster``, in YARN's application master."""
