"""The interface of tasks: `django.tasks` of Django 6.0, or else the package django-tasks, which has the same for older ones."""

from onceonly.model.errors import DriverMissing


class TasksMissing(DriverMissing, ModuleNotFoundError):
    """The interface is missing. `autodiscover_tasks` of Celery imports the module `tasks` of each app, and passes this over."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.name = "onceonly.integrations.django.tasks"


try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

    APP = ""
    """The app that a project must install for the interface. Empty for none."""
except ModuleNotFoundError:
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskError
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
    except ModuleNotFoundError as missing:
        raise TasksMissing("Django before 6.0 has no tasks: pip install django-tasks") from missing
    APP = "django_tasks"

__all__ = [
    "APP",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_enqueued",
    "task_finished",
    "task_started",
]
