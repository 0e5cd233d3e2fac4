// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

const mostPods = 2 // Apple's licence for macOS allows two virtual machines on a Mac

// Config is all that a Mac is made from. Each field belongs to one host or to all, as its
// tag says. Those with use:"connection" say how the host is reached and are in no part;
// one with use:"first-boot" is brought to new hosts alone.
type Config struct {
	// IP of the host, without a tailnet.
	IP string `host:"per-host" use:"connection"`
	// SSHUser is logged in at the console with UserPassword, and runs the kubelet.
	SSHUser      string     `host:"per-host"`
	UserPassword log.Secret `host:"per-host"`
	// SSHPrivateKey and the fingerprint: how to get in.
	SSHPrivateKey        log.Secret `host:"per-host" use:"connection"`
	KnownHostFingerprint string     `host:"per-host" use:"connection"`

	// NodeName of the host in Kubernetes; also its name.
	NodeName string `host:"per-host"`
	// ProviderID of the node, e.g. scw-applesilicon://fr-par-1/ID. May be empty.
	ProviderID string `host:"per-host"`
	// Kubeconfig with which the kubelet speaks to its API server.
	Kubeconfig log.Secret `host:"per-host"`
	// HostCPU in cores and HostMemoryMB that the node offers.
	HostCPU      int `host:"per-host"`
	HostMemoryMB int `host:"per-host"`
	// DisableVMGC keeps machines that belong to no pod, as on hosts that build images.
	DisableVMGC bool `host:"per-host"`
	// MaxPods is the most machines at a time: 1 or 2.
	MaxPods int `host:"fleet"`
	// NodeLabels of the node.
	NodeLabels map[string]string `host:"fleet"`
	// TartKubeletBinary is the kubelet.
	TartKubeletBinary plan.Content `host:"fleet"`
	// TartTarball is a release of Tart. Running machines would not survive a new one.
	TartTarball plan.Content `host:"fleet" use:"first-boot"`

	// Tailnet says whether the host is in a tailnet at all. The rest says how.
	Tailnet               bool         `host:"fleet"`
	TailscaleBinary       plan.Content `host:"fleet"`
	TailscaledBinary      plan.Content `host:"fleet"`
	TailscaleTags         []string     `host:"fleet"`
	TailscaleAcceptRoutes bool         `host:"fleet"`
	TailscaleAuthKey      log.Secret   `host:"per-host"`

	// VMKuraEgressCIDR is the network of the cache service that machines may reach, and
	// VMClusterDNSIP the DNS server. Empty for none.
	VMKuraEgressCIDR string `host:"fleet"`
	VMClusterDNSIP   string `host:"fleet"`
	// VMCachePNCIDR is the private network that machines may reach. Empty for none.
	VMCachePNCIDR string `host:"fleet"`
	// VMCachePNVLAN is the private network's tag at this host, 1 to 4094.
	VMCachePNVLAN int `host:"per-host"`

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

// login is the user of the console session; of a configuration for all hosts, some word.
func (c Config) login() string { return cmp.Or(c.SSHUser, "user") }

// loginForm is what macOS takes as the short name of a user.
var loginForm = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,30}$`)

// checkHost looks at what belongs to the one host.
func checkHost(cfg Config) error {
	errs := []error{parts.CheckNodeName("nodeName", cfg.NodeName)}

	if !loginForm.MatchString(cfg.SSHUser) || cfg.SSHUser == "root" {
		errs = append(errs, fmt.Errorf(
			"sshUser %q: must be the short name of a user other than root, who is logged in at the console", cfg.SSHUser))
	}

	if cfg.UserPassword.Empty() {
		errs = append(errs, errors.New(
			"userPassword is missing: without it macOS logs nobody in at the console, and starts no machine with macOS"))
	}

	if cfg.Kubeconfig.Empty() {
		errs = append(errs, errors.New("kubeconfig is missing: the kubelet needs one to join its cluster"))
	}

	if cfg.HostCPU < 1 || cfg.HostMemoryMB < 1 {
		errs = append(errs, fmt.Errorf("hostCPU %d and hostMemoryMB %d: say what the host's type has, in cores and MB",
			cfg.HostCPU, cfg.HostMemoryMB))
	}

	if cfg.Tailnet && cfg.TailscaleAuthKey.Empty() {
		errs = append(errs, errors.New("tailscaleAuthKey is missing: make one for this host, or turn tailnet off"))
	}

	switch vlan := cfg.VMCachePNVLAN; {
	case cfg.VMCachePNCIDR != "" && (vlan < 1 || vlan > 4094):
		errs = append(errs,
			fmt.Errorf("vmCachePNVLAN %d: must be the tag from 1 to 4094 that the private network has at this host", vlan))
	case cfg.VMCachePNCIDR == "" && vlan != 0:
		errs = append(errs,
			fmt.Errorf("vmCachePNVLAN %d: there is no private network to tag: set vmCachePNCIDR, or leave the tag away", vlan))
	}

	return errors.Join(errs...)
}
