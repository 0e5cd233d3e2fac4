// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// ReasonNetworkUnsupported is the reason of the error that machines cannot have the addresses of their template.
const ReasonNetworkUnsupported = "NetworkUnsupported"

// CheckOS returns an error if the template has settings that are not supported for the operating system of its machines.
func CheckOS(template *v1alpha1.HypervisorMachineTemplate) error {
	switch {
	case !template.IsWindows():
		return nil
	case template.Spec.Attestation != nil:
		return errclass.New(errclass.Configuration, ReasonAttestationUnavailable,
			"use template %s: machines with Windows cannot attest: remove spec.attestation", template.Name)
	case isServiceDelivered(template):
		return newDeliveryError(template)
	case hasOwnStaticNetwork(&template.Spec):
		return errclass.New(errclass.Configuration, ReasonNetworkUnsupported,
			"use template %s: machines with Windows get no addresses of spec.network.static, because cloudbase-init finds network "+
				"cards only by their MAC addresses: set spec.network.mode to dhcp", template.Name)
	default:
		return nil
	}
}

// hasOwnStaticNetwork reports whether machines get static addresses in the network data that the operator writes.
func hasOwnStaticNetwork(spec *v1alpha1.HypervisorMachineTemplateSpec) bool {
	hasNetworkData := spec.CloudInit != nil && strings.TrimSpace(spec.CloudInit.NetworkData) != ""

	return spec.Network != nil && spec.Network.Mode == v1alpha1.NetworkModeStatic && !hasNetworkData
}

// isServiceDelivered reports whether machines get the bootstrap service when they boot, and not with their image.
func isServiceDelivered(template *v1alpha1.HypervisorMachineTemplate) bool {
	method := template.Spec.Bootstrap.Delivery

	return method == v1alpha1.DeliveryISO || method == v1alpha1.DeliveryDownload
}

func newDeliveryError(template *v1alpha1.HypervisorMachineTemplate) error {
	return errclass.New(errclass.Configuration, "BootstrapDeliveryUnsupported",
		"render cloud-init ISO of template %s: bootstrap.delivery %s is not supported for Windows: set it to image, "+
			"and install bootstrap-service.exe in the template", template.Name, template.Spec.Bootstrap.Delivery)
}
