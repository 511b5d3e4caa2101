"""The CycloneDX bill of materials of a wheel (PEP 770), header-only parts included."""

from __future__ import annotations

import datetime
import uuid
from typing import TYPE_CHECKING

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from . import __version__

if TYPE_CHECKING:
    from .backend import Request
    from .sources import SourceTree

__all__ = ["make_sbom"]


def make_sbom(request: Request, source: SourceTree, epoch: int) -> str:
    """Return the SBOM as JSON: the wheel, its source archive, and what is compiled in or bundled.

    The serial number follows from the content and the time from `epoch` (seconds), so that two builds agree.
    """
    component, environment = request.component, request.environment
    wheel = Component(
        type=ComponentType.LIBRARY,
        name=component.distribution,
        version=request.version,
        bom_ref="wheel",
        purl=PackageURL("pypi", None, component.distribution, request.version),
        licenses=[LicenseExpression(component.license)],
    )
    parts = [
        Component(
            name=component.distribution,
            version=component.version,
            bom_ref="source",
            description="upstream source archive",
            purl=PackageURL("pypi", None, component.distribution, component.version),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=source.sha256)],
            licenses=[LicenseExpression(component.license)],
        ),
        *(
            Component(
                name=part["name"],
                version=part["version"],
                bom_ref=part["name"],
                description="headers bundled by upstream",
                licenses=[LicenseExpression(part["license"])],
            )
            for part in component.bundles
        ),
        Component(name="torch", version=environment.torch, bom_ref="torch", description="headers, compiled in"),
    ]
    if environment.nvcc:
        parts.append(
            Component(name="CCCL", version=environment.nvcc, bom_ref="CCCL", description="headers, compiled in")
        )
    if component.torch_npu:
        parts.append(
            Component(
                name="torch_npu", version=component.torch_npu, bom_ref="torch_npu", description="headers, compiled in"
            )
        )
    if request.cann:
        parts.append(
            Component(
                name="CANN",
                version=request.cann.version,
                bom_ref="CANN",
                description="Ascend C runtime, linked statically",
            )
        )
    if environment.compiler_packages:  # the provisioned compiler: debian.py
        parts.append(
            Component(
                name="libstdc++", version=environment.gcc, bom_ref="libstdc++", description="parts linked statically"
            )
        )
    if component.nccl:
        parts.append(
            Component(name="NCCL", version=environment.nccl, bom_ref="NCCL", description="headers, compiled in")
        )
    bom = Bom(
        components=parts, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"archwright/{request.version}/{source.sha256}")
    )
    bom.metadata.component = wheel
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    bom.metadata.tools.components.add(Component(type=ComponentType.APPLICATION, name="archwright", version=__version__))
    bom.register_dependency(wheel, parts)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"
