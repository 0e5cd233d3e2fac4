// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Config is all that a Linux host is made from. Each field belongs to one host or to all,
// as its tag says.
type Config struct {
	// NodeName of the host in Kubernetes; also its name in the tailnet.
	NodeName string `host:"per-host"`
	// Kubeconfig with which the agent speaks to its API server.
	Kubeconfig log.Secret `host:"per-host"`
	// AgentBinary runs the machines. It is started with --node-name, --kubeconfig,
	// --max-pods and --node-labels.
	AgentBinary plan.Content `host:"fleet"`
	// MaxPods is the most machines at a time.
	MaxPods int `host:"fleet"`
	// NodeLabels of the node.
	NodeLabels map[string]string `host:"fleet"`

	// Tailnet says whether the host is in a tailnet at all. The rest says how.
	Tailnet               bool         `host:"fleet"`
	TailscaleBinary       plan.Content `host:"fleet"`
	TailscaledBinary      plan.Content `host:"fleet"`
	TailscaleTags         []string     `host:"fleet"`
	TailscaleAcceptRoutes bool         `host:"fleet"`
	TailscaleAuthKey      log.Secret   `host:"per-host"`

	// VMCIDR is the network of the machines on the host's bridge.
	VMCIDR string `host:"fleet"`
	// VMEgressCIDRs are networks that machines may reach of those that are shut to them,
	// and VMDNSIP is a DNS server. Empty for none.
	VMEgressCIDRs []string `host:"fleet"`
	VMDNSIP       string   `host:"fleet"`

	// NodeExporterBinary reports the host's metrics.
	NodeExporterBinary plan.Content `host:"fleet"`
}

// Render gives the plan of one host. What is missing or wrong is named with its field
// and how to fix it, all at once.
func Render(cfg Config) (plan.Plan, error) {
	p, err := draft(cfg).Plan()
	if err := errors.Join(checkHost(cfg), err); err != nil {
		return plan.Plan{}, fmt.Errorf("render plan of host %q: %w", cfg.NodeName, err)
	}

	return p, nil
}

// HostConfigHash is the digest of what all hosts of a fleet get.
func HostConfigHash(cfg Config) string { return plan.HostConfigHash(cfg, draft) }

// checkHost looks at what belongs to the one host.
func checkHost(cfg Config) error {
	errs := []error{parts.CheckNodeName("nodeName", cfg.NodeName)}

	if cfg.Kubeconfig.Empty() {
		errs = append(errs, errors.New("kubeconfig is missing: the agent needs one to join its cluster"))
	}

	if cfg.Tailnet && cfg.TailscaleAuthKey.Empty() {
		errs = append(errs, errors.New("tailscaleAuthKey is missing: make one for this host, or turn tailnet off"))
	}

	return errors.Join(errs...)
}
