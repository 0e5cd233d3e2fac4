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

const maxPodsLimit = 2 // Apple's license for macOS allows two virtual machines on a Mac

// Config is the input of a Mac's plan. The tag of each field says whether the field belongs to one
// host or to the fleet. Fields with use:"connection" say how the host is reached and are in no
// part. A field with use:"first-boot" only affects new hosts.
type Config struct {
	// IP is the host's address outside the tailnet.
	IP string `host:"per-host" use:"connection"`
	// SSHUser is logged in at the console with UserPassword, and runs the kubelet.
	SSHUser      string     `host:"per-host"`
	UserPassword log.Secret `host:"per-host"`
	// SSHPrivateKey and KnownHostFingerprint are used to log in to the host.
	SSHPrivateKey        log.Secret `host:"per-host" use:"connection"`
	KnownHostFingerprint string     `host:"per-host" use:"connection"`

	// NodeName is the host's name, also in Kubernetes.
	NodeName string `host:"per-host"`
	// ProviderID is the provider ID of the Node, for example scw-applesilicon://fr-par-1/ID. It may
	// be empty.
	ProviderID string `host:"per-host"`
	// Kubeconfig is the kubelet's credential for its API server.
	Kubeconfig log.Secret `host:"per-host"`
	// HostCPU in cores and HostMemoryMB are the capacity of the Node.
	HostCPU      int `host:"per-host"`
	HostMemoryMB int `host:"per-host"`
	// DisableVMGC keeps machines that belong to no Pod, for example on hosts that build images.
	DisableVMGC bool `host:"per-host"`
	// MaxPods is the maximum number of machines at a time: 1 or 2.
	MaxPods int `host:"fleet"`
	// NodeLabels are the labels of the Node.
	NodeLabels map[string]string `host:"fleet"`
	// TartKubeletBinary is the kubelet.
	TartKubeletBinary plan.Content `host:"fleet"`
	// TartTarball is a release of Tart. Running machines would not survive another release.
	TartTarball plan.Content `host:"fleet" use:"first-boot"`

	// Tailnet is true if the host joins a tailnet. The fields below configure how.
	Tailnet               bool         `host:"fleet"`
	TailscaleBinary       plan.Content `host:"fleet"`
	TailscaledBinary      plan.Content `host:"fleet"`
	TailscaleTags         []string     `host:"fleet"`
	TailscaleAcceptRoutes bool         `host:"fleet"`
	TailscaleAuthKey      log.Secret   `host:"per-host"`

	// VMKuraEgressCIDR is the network of the cache service that machines can reach, and
	// VMClusterDNSIP is the DNS server that they can reach. Both may be empty.
	VMKuraEgressCIDR string `host:"fleet"`
	VMClusterDNSIP   string `host:"fleet"`
	// VMCachePNCIDR is the private network that machines can reach. It may be empty.
	VMCachePNCIDR string `host:"fleet"`
	// VMCachePNVLAN is the VLAN tag of the private network on this host, 1 to 4094.
	VMCachePNVLAN int `host:"per-host"`

	// NodeExporterBinary exports the host's metrics.
	NodeExporterBinary plan.Content `host:"fleet"`
}

// defaultUser stands for the user in a configuration for all hosts. It is in the digests of parts.
const defaultUser = "user"

// consoleUser returns the user of the console session. A configuration for all hosts has no user,
// so it gets a placeholder.
func (c Config) consoleUser() string { return cmp.Or(c.SSHUser, defaultUser) }

// userPattern matches the short user names that macOS accepts.
var userPattern = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,30}$`)

// validateHost validates the fields that belong to one host.
func validateHost(cfg Config) error {
	errs := []error{parts.ValidateNodeName("nodeName", cfg.NodeName)}

	if !userPattern.MatchString(cfg.SSHUser) || cfg.SSHUser == "root" {
		errs = append(errs, fmt.Errorf(
			"sshUser %q: must be the short name of a user other than root, who is logged in at the console", cfg.SSHUser))
	}

	if cfg.UserPassword.IsEmpty() {
		errs = append(errs, errors.New(
			"userPassword is missing: macOS needs it to log the user in at the console, where machines with macOS must run"))
	}

	if cfg.Kubeconfig.IsEmpty() {
		errs = append(errs, errors.New("kubeconfig is missing: the kubelet needs one to join its cluster"))
	}

	if cfg.HostCPU < 1 || cfg.HostMemoryMB < 1 {
		errs = append(errs, fmt.Errorf("hostCPU %d and hostMemoryMB %d: must be the cores and the memory in MB of the host's type",
			cfg.HostCPU, cfg.HostMemoryMB))
	}

	if cfg.Tailnet && cfg.TailscaleAuthKey.IsEmpty() {
		errs = append(errs, errors.New("tailscaleAuthKey is missing: create a key for this host, or disable the tailnet"))
	}

	switch vlan := cfg.VMCachePNVLAN; {
	case cfg.VMCachePNCIDR != "" && (vlan < 1 || vlan > 4094):
		errs = append(errs,
			fmt.Errorf("vmCachePNVLAN %d: must be the tag from 1 to 4094 that the private network has at this host", vlan))
	case cfg.VMCachePNCIDR == "" && vlan != 0:
		errs = append(errs,
			fmt.Errorf("vmCachePNVLAN %d: is set without a private network: set vmCachePNCIDR, or remove vmCachePNVLAN", vlan))
	}

	return errors.Join(errs...)
}
