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

// Name of the kind.
const Name = "LinuxMachine"

// Kind is machine.Kind for LinuxMachines.
type Kind struct {
	fleet linuxplan.Config
	hash  string
}

var _ machine.Kind = (*Kind)(nil)

// New gives the kind, with what is the same for all hosts ([Load]). Its hash is made here,
// once. Without an agent nothing is brought to any host.
func New(fleet linuxplan.Config) *Kind {
	k := &Kind{fleet: fleet}
	if fleet.AgentBinary.Size() > 0 {
		k.hash = linuxplan.HostConfigHash(fleet)
	}

	return k
}

// Name of the kind.
func (k *Kind) Name() string { return Name }

// New gives an empty object.
func (k *Kind) New() machine.Object { return &v1alpha1.LinuxMachine{} }

// NewList gives an empty list.
func (k *Kind) NewList() client.ObjectList { return &v1alpha1.LinuxMachineList{} }

// FleetName is the host's fleet.
func (k *Kind) FleetName(host machine.Object) string { return linuxOf(host).Spec.FleetName }

// Like gives nothing: hosts are where they are.
func (k *Kind) Like(machine.Object) machine.Object { return nil }

// Hash of what all hosts get; empty without an agent.
func (k *Kind) Hash() string { return k.hash }

// linuxOf is the object as what it is: the core hands back what New gave.
func linuxOf(host machine.Object) *v1alpha1.LinuxMachine {
	out, ok := host.(*v1alpha1.LinuxMachine)
	if !ok {
		panic(fmt.Sprintf("a host of kind %s is a %T", Name, host))
	}

	return out
}

// Provision notes the address: the host is there.
func (k *Kind) Provision(_ context.Context, host machine.Object) step.Result {
	m := linuxOf(host)

	form := "Hostname"
	if _, err := netip.ParseAddr(m.Spec.Address); err == nil {
		form = "InternalIP"
	}

	m.Status.Addresses = []v1alpha1.HostAddress{{Type: form, Address: m.Spec.Address}}

	return step.Done()
}

// Access is what the spec says.
func (k *Kind) Access(ctx context.Context, secrets machine.Secrets, host machine.Object) (machine.Access, error) {
	m := linuxOf(host)

	access := addressesOf(m)
	access.User = m.Spec.User

	var err error

	access.PrivateKey, err = secrets.Secret(ctx, m.Namespace, m.Spec.SSHKeySecretRef, credential.To(access.Servers()...))
	if err != nil {
		return machine.Access{}, err
	}

	return access, nil
}

func addressesOf(m *v1alpha1.LinuxMachine) machine.Access {
	return machine.Access{
		Address:   net.JoinHostPort(m.Spec.Address, strconv.Itoa(int(m.Spec.Port))),
		Fallbacks: machine.At(m.Spec.FallbackAddresses, m.Spec.Port),
	}
}

// HostKeys is what the spec says.
func (k *Kind) HostKeys(host machine.Object) machine.HostKeys {
	spec := linuxOf(host).Spec

	return machine.HostKeysOf(spec.SSHHostKey, spec.SSHHostCertAuthorities, spec.SSHHostKeyChecking)
}

// NamesKubeconfig says whether the spec names one.
func (k *Kind) NamesKubeconfig(host machine.Object) bool {
	return linuxOf(host).Spec.KubeconfigSecretRef.Name != ""
}

// AskOS has nothing to ask: the operating system is updated by whoever runs the host.
func (k *Kind) AskOS(machine.Object, machine.Access, machine.OSAsk) (plan.Part, bool) {
	return plan.Part{}, false
}

// Plan renders what the host should have.
func (k *Kind) Plan(
	ctx context.Context, secrets machine.Secrets, host machine.Object, access machine.Access,
) (plan.Plan, error) {
	if k.hash == "" {
		return plan.Plan{}, errclass.New(errclass.Configuration, "NoConfiguration",
			"the operator has no configuration for Linux hosts: set hosts.linux.agentFile in its configuration")
	}

	m := linuxOf(host)
	cfg := k.fleet
	cfg.NodeName = m.Name

	// It is pushed to the host, which is as much as sent.
	to := credential.To(addressesOf(m).Servers()...)

	var err error
	if cfg.Kubeconfig, err = machine.Kubeconfig(ctx, secrets, m.Namespace, m.Spec.KubeconfigSecretRef, access, to); err != nil {
		return plan.Plan{}, err
	}

	if ref := m.Spec.TailscaleAuthKeySecretRef; cfg.Tailnet && ref != nil {
		if cfg.TailscaleAuthKey, err = secrets.Secret(ctx, m.Namespace, *ref, to); err != nil {
			return plan.Plan{}, err
		}
	}

	p, err := linuxplan.Render(cfg)
	if err != nil {
		return plan.Plan{}, errclass.Wrap(errclass.Configuration, "ConfigNotRendered", err)
	}

	return p, nil
}

// BeforeBoot has nothing to do.
func (k *Kind) BeforeBoot(context.Context, machine.Object) step.Result { return step.Done() }

// Stamp has nothing to note.
func (k *Kind) Stamp(machine.Object) {}

// Leave stops the agent: its credential is ours.
func (k *Kind) Leave(machine.Object) (plan.Part, bool) { return linuxplan.Leave(), true }

// Release leaves the host as it is: what was brought there stays, and its agent goes on for
// as long as a kubeconfig of its own is taken.
func (k *Kind) Release(context.Context, machine.Object) step.Result { return step.Done() }

// Load makes what is the same for all hosts out of the operator's configuration, with its
// files read. A file that can't be read is an error; what is wrong or missing of the rest
// is told by the hosts' conditions when their plans are rendered.
func Load(cfg config.LinuxHosts, read func(path string) ([]byte, error)) (linuxplan.Config, error) {
	out := linuxplan.Config{
		MaxPods: cfg.MaxPods, NodeLabels: cfg.NodeLabels,
		VMCIDR: cfg.VMCIDR, VMEgressCIDRs: cfg.VMEgressCIDRs, VMDNSIP: cfg.VMDNSIP,
		Tailnet: cfg.Tailnet.Enabled, TailscaleTags: cfg.Tailnet.Tags, TailscaleAcceptRoutes: cfg.Tailnet.AcceptRoutes,
	}

	return out, plan.ReadFiles(read,
		plan.Source{Field: "hosts.linux.agentFile", Path: cfg.AgentFile, Into: &out.AgentBinary},
		plan.Source{Field: "hosts.linux.nodeExporterFile", Path: cfg.NodeExporterFile, Into: &out.NodeExporterBinary},
		plan.Source{Field: "hosts.linux.tailnet.cliFile", Path: cfg.Tailnet.CLIFile, Into: &out.TailscaleBinary},
		plan.Source{Field: "hosts.linux.tailnet.daemonFile", Path: cfg.Tailnet.DaemonFile, Into: &out.TailscaledBinary},
	)
}
