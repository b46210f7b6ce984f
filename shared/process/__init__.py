"""What every process of ours does alike: it starts, is told to stop, tries again, and names a defect."""
