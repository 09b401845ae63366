"""A script that learns, slowly until it is told to go on, and says in the end what it learned."""

LEARNS = """
    import os, time
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    import headgate.torch as hg

    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(320, 4), torch.randn(320, 1))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer, loader = hg.prepare(model, optimizer, DataLoader(data, 8, shuffle=True))
    steps = 0
    for epoch in hg.epochs(5):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hg.report(loss=loss)
            steps += 1
            if not os.path.exists("go"):
                time.sleep(0.1 if steps < 50 else 0.5)
    print("learned", *(parameter.tolist() for parameter in model.parameters()))
"""
STEPS = 200
"""Steps of all its epochs."""
