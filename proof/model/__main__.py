import sys

from proof.model.check import main

sys.exit(main())
