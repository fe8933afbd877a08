import importlib.util, os
from hypothesis import settings, HealthCheck
spec=importlib.util.spec_from_file_location("m","tests/property/test_fed_readers.py"); m=importlib.util.module_from_spec(spec); spec.loader.exec_module(m)
N=int(os.environ.get("N","1500"))
kw=dict(max_examples=N, stateful_step_count=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
class A(m.Applications): pass
class B(m.OrderedApplications): pass
A.TestCase.settings=settings(**kw); B.TestCase.settings=settings(**kw)
TestA=A.TestCase; TestB=B.TestCase
