"""Stock Locust pacing, for comparison only: ten users at ten requests a second each."""

from locust import FastHttpUser, constant_throughput, task


class Paced(FastHttpUser):
    fixed_count = 10
    wait_time = constant_throughput(10)

    @task
    def upload(self) -> None:
        self.client.post("/", data="x" * 1000)
