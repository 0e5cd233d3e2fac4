// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	linuxplan "github.com/hyperfleet/hyperfleet/hosts/plan/linux"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=linuxmachines,verbs=get;list;watch;patch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=linuxmachines/status,verbs=patch

// Name is the name of the kind.
const Name = "LinuxMachine"

// Kind implements machine.Kind for LinuxMachines.
type Kind struct {
	fleet linuxplan.Config
	hash  string
}

var _ machine.Kind = (*Kind)(nil)

// New returns the kind with the configuration that all hosts share ([Load]), and computes its hash.
// Without an agent binary the hash is empty, so nothing is pushed to any host.
func New(fleet linuxplan.Config) *Kind {
	k := &Kind{fleet: fleet}
	if fleet.AgentBinary.Size() > 0 {
		k.hash = linuxplan.HostConfigHash(fleet)
	}

	return k
}

// Name returns the name of the kind.
func (k *Kind) Name() string { return Name }

// New returns an empty object.
func (k *Kind) New() machine.Object { return &v1alpha1.LinuxMachine{} }

// NewList returns an empty list.
func (k *Kind) NewList() client.ObjectList { return &v1alpha1.LinuxMachineList{} }

// FleetName returns the name of the host's fleet.
func (k *Kind) FleetName(host machine.Object) string { return linuxOf(host).Spec.FleetName }

// NewLike returns nil, because Linux hosts can't be ordered.
func (k *Kind) NewLike(machine.Object) machine.Object { return nil }

// Hash returns the digest of what all hosts get. It is empty without an agent.
func (k *Kind) Hash() string { return k.hash }

// linuxOf returns the host as a LinuxMachine. It panics for other types, but package machine only
// passes objects that New returned.
func linuxOf(host machine.Object) *v1alpha1.LinuxMachine {
	out, ok := host.(*v1alpha1.LinuxMachine)
	if !ok {
		panic(fmt.Sprintf("a host of kind %s is a %T", Name, host))
	}

	return out
}

// Provision copies the address to the status. The host already exists.
func (k *Kind) Provision(_ context.Context, host machine.Object) step.Result {
	m := linuxOf(host)

	addressType := "Hostname"
	if _, err := netip.ParseAddr(m.Spec.Address); err == nil {
		addressType = "InternalIP"
	}

	m.Status.Addresses = []v1alpha1.HostAddress{{Type: addressType, Address: m.Spec.Address}}

	return step.Done()
}

// Access returns the addresses and the user of the spec, and the SSH private key of the Secret that the spec
// names. It returns an error if the Secret does not allow its use for these addresses.
func (k *Kind) Access(ctx context.Context, secrets machine.Secrets, host machine.Object) (machine.Access, error) {
	m := linuxOf(host)

	access := newAccess(m)
	access.User = m.Spec.User

	var err error

	access.PrivateKey, err = secrets.Secret(ctx, m.Namespace, m.Spec.SSHKeySecretRef, credential.NewDestination(access.Servers()...))
	if err != nil {
		return machine.Access{}, err
	}

	return access, nil
}

// newAccess returns the addresses of the host, without the user and the key.
func newAccess(m *v1alpha1.LinuxMachine) machine.Access {
	return machine.Access{
		Address:   net.JoinHostPort(m.Spec.Address, strconv.Itoa(int(m.Spec.Port))),
		Fallbacks: machine.JoinHostsPort(m.Spec.FallbackAddresses, m.Spec.Port),
	}
}

// HostKeys returns what the spec says about the host's key.
func (k *Kind) HostKeys(host machine.Object) machine.HostKeys {
	return machine.NewHostKeys(linuxOf(host).Spec.SSHHostKeys)
}

// HasKubeconfig returns true if the spec names a kubeconfig.
func (k *Kind) HasKubeconfig(host machine.Object) bool {
	return linuxOf(host).Spec.KubeconfigSecretRef.Name != ""
}

// RenderOSStep returns false, because the owner of the host updates its operating system.
func (k *Kind) RenderOSStep(machine.Object, machine.Access, machine.OSStepParams) (plan.Part, bool) {
	return plan.Part{}, false
}

// RenderPlan renders the plan of the host.
func (k *Kind) RenderPlan(
	ctx context.Context, secrets machine.Secrets, host machine.Object, access machine.Access,
) (plan.Plan, error) {
	if k.hash == "" {
		return plan.Plan{}, errclass.New(errclass.Configuration, "NoConfiguration",
			"the operator has no configuration for Linux hosts: set hosts.linux.agentFile in its configuration")
	}

	m := linuxOf(host)
	cfg := k.fleet
	cfg.NodeName = m.Name

	// The Secret is pushed to the host, so the host must be an allowed destination of the Secret.
	destination := credential.NewDestination(newAccess(m).Servers()...)

	var err error

	cfg.Kubeconfig, err = machine.Kubeconfig(ctx, secrets, m.Namespace, m.Spec.KubeconfigSecretRef, access, destination)
	if err != nil {
		return plan.Plan{}, err
	}

	if ref := m.Spec.TailscaleAuthKeySecretRef; cfg.Tailnet && ref != nil {
		if cfg.TailscaleAuthKey, err = secrets.Secret(ctx, m.Namespace, *ref, destination); err != nil {
			return plan.Plan{}, err
		}
	}

	p, err := linuxplan.Render(cfg)
	if err != nil {
		return plan.Plan{}, errclass.Wrap(errclass.Configuration, "ConfigNotRendered", err)
	}

	return p, nil
}

// BeforeBoot does nothing.
func (k *Kind) BeforeBoot(context.Context, machine.Object) step.Result { return step.Done() }

// Marks returns nothing, because the address of the host is in its spec.
func (k *Kind) Marks(machine.Object) machine.Marks { return nil }

// ReadBack does nothing.
func (k *Kind) ReadBack(machine.Object) {}

// RecordPush does nothing.
func (k *Kind) RecordPush(machine.Object) {}

// RenderCredentialRemoval returns a script that stops the agent and deletes the credential that the
// operator issued.
func (k *Kind) RenderCredentialRemoval(machine.Object) (plan.Part, bool) {
	return linuxplan.NewCredentialRemoval(), true
}

// SecretsForRelease returns the Secret with the SSH key, with which the credential is removed from the host.
func (k *Kind) SecretsForRelease(host machine.Object, hasCredential bool) []string {
	if !hasCredential {
		return nil
	}

	return []string{linuxOf(host).Spec.SSHKeySecretRef.Name}
}

// Release does nothing, so everything that was pushed stays on the host. The agent runs as long as
// the cluster accepts the kubeconfig that the host's spec names.
func (k *Kind) Release(context.Context, machine.Object) step.Result { return step.Done() }

// Load converts the operator's configuration to the configuration that all hosts share, and reads
// the files that it names. It returns an error if a file can't be read. Other errors of the
// configuration are reported by the hosts' conditions when their plans are rendered.
func Load(cfg config.LinuxHosts) (linuxplan.Config, error) {
	out := linuxplan.Config{
		MaxPods: cfg.MaxPods, NodeLabels: cfg.NodeLabels,
		VMCIDR: cfg.VMCIDR, VMEgressCIDRs: cfg.VMEgressCIDRs, VMDNSIP: cfg.VMDNSIP,
		Tailnet: cfg.Tailnet.Enabled, TailscaleTags: cfg.Tailnet.Tags, TailscaleAcceptRoutes: cfg.Tailnet.AcceptRoutes,
	}

	return out, plan.ReadFiles(
		plan.Source{Field: "hosts.linux.agentFile", Path: cfg.AgentFile, Target: &out.AgentBinary},
		plan.Source{Field: "hosts.linux.nodeExporterFile", Path: cfg.NodeExporterFile, Target: &out.NodeExporterBinary},
		plan.Source{Field: "hosts.linux.tailnet.cliFile", Path: cfg.Tailnet.CLIFile, Target: &out.TailscaleBinary},
		plan.Source{Field: "hosts.linux.tailnet.daemonFile", Path: cfg.Tailnet.DaemonFile, Target: &out.TailscaledBinary},
	)
}
