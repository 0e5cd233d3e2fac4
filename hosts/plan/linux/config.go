// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Config is the input of a Linux host's plan. The tag of each field says whether the field belongs
// to one host or to the fleet.
type Config struct {
	// NodeName is the host's name in Kubernetes and in the tailnet.
	NodeName string `host:"per-host"`
	// Kubeconfig is the agent's credential for its API server.
	Kubeconfig log.Secret `host:"per-host"`
	// AgentBinary runs the machines. systemd starts it with --node-name, --kubeconfig, --max-pods
	// and --node-labels.
	AgentBinary plan.Content `host:"fleet"`
	// MaxPods is the maximum number of machines at a time.
	MaxPods int `host:"fleet"`
	// NodeLabels are the labels of the Node.
	NodeLabels map[string]string `host:"fleet"`

	// Tailnet is true if the host joins a tailnet. The fields below configure how.
	Tailnet               bool         `host:"fleet"`
	TailscaleBinary       plan.Content `host:"fleet"`
	TailscaledBinary      plan.Content `host:"fleet"`
	TailscaleTags         []string     `host:"fleet"`
	TailscaleAcceptRoutes bool         `host:"fleet"`
	TailscaleAuthKey      log.Secret   `host:"per-host"`

	// VMCIDR is the network of the machines on the host's bridge.
	VMCIDR string `host:"fleet"`
	// VMEgressCIDRs are denied networks that machines can reach nevertheless, and VMDNSIP is a DNS
	// server that they can reach. Both may be empty.
	VMEgressCIDRs []string `host:"fleet"`
	VMDNSIP       string   `host:"fleet"`

	// NodeExporterBinary exports the host's metrics.
	NodeExporterBinary plan.Content `host:"fleet"`
}

// validateHost validates the fields that belong to one host.
func validateHost(cfg Config) error {
	errs := []error{parts.ValidateNodeName("nodeName", cfg.NodeName)}

	if cfg.Kubeconfig.IsEmpty() {
		errs = append(errs, errors.New("kubeconfig is missing: the agent needs one to join its cluster"))
	}

	if cfg.Tailnet && cfg.TailscaleAuthKey.IsEmpty() {
		errs = append(errs, errors.New("tailscaleAuthKey is missing: create a key for this host, or disable the tailnet"))
	}

	return errors.Join(errs...)
}
