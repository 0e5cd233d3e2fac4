// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	macplan "github.com/hyperfleet/hyperfleet/hosts/plan/mac"
)

// Load makes what is the same for all Macs out of the operator's configuration, with its
// files read. A file that can't be read is an error; what is wrong or missing of the rest
// is told by the hosts' conditions when their plans are rendered.
func Load(cfg config.MacHosts, read func(path string) ([]byte, error)) (macplan.Config, error) {
	out := macplan.Config{
		MaxPods: cfg.MaxPods, NodeLabels: cfg.NodeLabels,
		VMKuraEgressCIDR: cfg.VMEgressCIDR, VMClusterDNSIP: cfg.VMDNSIP, VMCachePNCIDR: cfg.PrivateNetworkCIDR,
		Tailnet: cfg.Tailnet.Enabled, TailscaleTags: cfg.Tailnet.Tags, TailscaleAcceptRoutes: cfg.Tailnet.AcceptRoutes,
	}

	return out, plan.ReadFiles(read,
		plan.Source{Field: "hosts.mac.tartKubeletFile", Path: cfg.TartKubeletFile, Into: &out.TartKubeletBinary},
		plan.Source{Field: "hosts.mac.tartFile", Path: cfg.TartFile, Into: &out.TartTarball},
		plan.Source{Field: "hosts.mac.nodeExporterFile", Path: cfg.NodeExporterFile, Into: &out.NodeExporterBinary},
		plan.Source{Field: "hosts.mac.tailnet.cliFile", Path: cfg.Tailnet.CLIFile, Into: &out.TailscaleBinary},
		plan.Source{Field: "hosts.mac.tailnet.daemonFile", Path: cfg.Tailnet.DaemonFile, Into: &out.TailscaledBinary},
	)
}
