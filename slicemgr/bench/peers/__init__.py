"""The systems that `slicectl bench peers` compares slicemgr with, and the programs that control each."""
