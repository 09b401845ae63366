from headgate.cli import main

main()
