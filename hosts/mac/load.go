// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	macplan "github.com/hyperfleet/hyperfleet/hosts/plan/mac"
)

// Load converts the operator's configuration to the configuration that all Macs share, and reads
// the files that it names. It returns an error if a file can't be read. Other errors of the
// configuration are reported by the hosts' conditions when their plans are rendered.
func Load(cfg config.MacHosts) (macplan.Config, error) {
	out := macplan.Config{
		MaxPods: cfg.MaxPods, NodeLabels: cfg.NodeLabels,
		VMKuraEgressCIDR: cfg.VMEgressCIDR, VMClusterDNSIP: cfg.VMDNSIP, VMCachePNCIDR: cfg.PrivateNetworkCIDR,
		Tailnet: cfg.Tailnet.Enabled, TailscaleTags: cfg.Tailnet.Tags, TailscaleAcceptRoutes: cfg.Tailnet.AcceptRoutes,
	}

	return out, plan.ReadFiles(
		plan.Source{Field: "hosts.mac.tartKubeletFile", Path: cfg.TartKubeletFile, Target: &out.TartKubeletBinary},
		plan.Source{Field: "hosts.mac.tartFile", Path: cfg.TartFile, Target: &out.TartTarball},
		plan.Source{Field: "hosts.mac.nodeExporterFile", Path: cfg.NodeExporterFile, Target: &out.NodeExporterBinary},
		plan.Source{Field: "hosts.mac.tailnet.cliFile", Path: cfg.Tailnet.CLIFile, Target: &out.TailscaleBinary},
		plan.Source{Field: "hosts.mac.tailnet.daemonFile", Path: cfg.Tailnet.DaemonFile, Target: &out.TailscaledBinary},
	)
}
