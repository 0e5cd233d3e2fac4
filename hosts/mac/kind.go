// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"

	"golang.org/x/crypto/ssh"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	macplan "github.com/hyperfleet/hyperfleet/hosts/plan/mac"
	"github.com/hyperfleet/hyperfleet/hosts/scaleway"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/inputbound"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=scalewayapplesiliconmachines,verbs=get;list;watch;patch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=scalewayapplesiliconmachines/status,verbs=patch

// Name of the kind.
const Name = "ScalewayAppleSiliconMachine"

// Options of a Kind.
type Options struct {
	// Live reads from the API server itself. Required.
	Live client.Reader
	// Secrets reads the API keys. Required.
	Secrets machine.Secrets
	// Fleet is what is the same for all Macs ([Load]); nothing is brought to any without its
	// kubelet.
	Fleet macplan.Config
	// Clock tells the time. Default: the real one.
	Clock clock.Clock
	// Transport wraps the transport to Scaleway's API, such as for metrics. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Reach is how far calls go to an API that a Secret names. Nil: to public addresses.
	Reach *httpbound.Reach
}

// Kind is machine.Kind for ScalewayAppleSiliconMachines.
type Kind struct {
	Options

	hash string
	// adopting is held while a server of a pool is chosen and put on record.
	adopting sync.Mutex
}

var _ machine.Kind = (*Kind)(nil)

// New gives the kind. The fleet's hash is made here, once.
func New(options Options) *Kind {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	k := &Kind{Options: options}
	if options.Fleet.TartKubeletBinary.Size() > 0 {
		k.hash = macplan.HostConfigHash(options.Fleet)
	}

	return k
}

// Name of the kind.
func (k *Kind) Name() string { return Name }

// New gives an empty object.
func (k *Kind) New() machine.Object { return &v1alpha1.ScalewayAppleSiliconMachine{} }

// NewList gives an empty list.
func (k *Kind) NewList() client.ObjectList { return &v1alpha1.ScalewayAppleSiliconMachineList{} }

// FleetName is the machine's fleet.
func (k *Kind) FleetName(host machine.Object) string { return macOf(host).Spec.FleetName }

// Like gives a Mac that is ordered or adopted as another one was. The tag of its private network,
// its addresses and its key are its own.
func (k *Kind) Like(host machine.Object) machine.Object {
	out := &v1alpha1.ScalewayAppleSiliconMachine{Spec: *macOf(host).Spec.DeepCopy()}
	out.Spec.PrivateNetworkVLAN, out.Spec.FallbackAddresses, out.Spec.SSHHostKey = 0, nil, ""

	return out
}

// Hash of what all Macs get; empty without a kubelet.
func (k *Kind) Hash() string { return k.hash }

// macOf is the object as what it is: the core hands back what New gave.
func macOf(host machine.Object) *v1alpha1.ScalewayAppleSiliconMachine {
	mac, ok := host.(*v1alpha1.ScalewayAppleSiliconMachine)
	if !ok {
		panic(fmt.Sprintf("a host of kind %s is a %T", Name, host))
	}

	return mac
}

// serverName ties a server to its machine. The uid makes it another one for a machine that
// is made anew.
func serverName(mac *v1alpha1.ScalewayAppleSiliconMachine) string {
	return ourPrefix + mac.Name + "-" + string(mac.UID)
}

// ourPrefix begins the names of all servers of machines; no pool may have it.
const ourPrefix = "hf-"

// Access asks Scaleway for the user and the password, which is another one after each
// installation and is kept nowhere, and whether the server still is the machine's.
func (k *Kind) Access(ctx context.Context, secrets machine.Secrets, host machine.Object) (machine.Access, error) {
	mac := macOf(host)

	api, err := k.api(ctx, mac)
	if err != nil {
		return machine.Access{}, err
	}

	server, err := api.Get(ctx, mac.Status.ServerID)
	if err != nil {
		return machine.Access{}, fmt.Errorf("ask how to log in: %w", err)
	}

	// The name says whose it is: nothing is pushed to a server that others were given.
	if server.Name != serverName(mac) {
		return machine.Access{}, errclass.New(errclass.Configuration, "ServerRenamed",
			"server %s is named %q at Scaleway, and not %s any more: name it so again, or delete this machine",
			server.ID, server.Name, serverName(mac))
	}

	if server.IP == "" || server.SSHUser == "" {
		return machine.Access{}, errclass.New(errclass.Transient, "ServerWithoutAddress",
			"server %s has no address or no user (yet): it is %s", server.ID, server.Status)
	}

	access := machine.Access{
		Address:   net.JoinHostPort(server.IP, strconv.Itoa(int(mac.Spec.SSHPort))),
		Fallbacks: machine.At(mac.Spec.FallbackAddresses, mac.Spec.SSHPort),
		User:      server.SSHUser, Password: server.Password,
	}

	access.PrivateKey, err = secrets.Secret(ctx, mac.Namespace, mac.Spec.SSHKeySecretRef, credential.To(access.Servers()...))
	if err != nil {
		return machine.Access{}, err
	}

	return access, nil
}

// HostKeys is what the spec says: Scaleway's API tells no keys.
func (k *Kind) HostKeys(host machine.Object) machine.HostKeys {
	spec := macOf(host).Spec

	return machine.HostKeysOf(spec.SSHHostKey, spec.SSHHostCertAuthorities, spec.SSHHostKeyChecking)
}

// NamesKubeconfig says whether the spec names one.
func (k *Kind) NamesKubeconfig(host machine.Object) bool {
	return macOf(host).Spec.KubeconfigSecretRef.Name != ""
}

// Plan renders what the Mac should have.
func (k *Kind) Plan(
	ctx context.Context, secrets machine.Secrets, host machine.Object, access machine.Access,
) (plan.Plan, error) {
	if k.hash == "" {
		return plan.Plan{}, errclass.New(errclass.Configuration, "NoConfiguration",
			"the operator has no configuration for Macs: set hosts.mac.tartKubeletFile in its configuration")
	}

	mac := macOf(host)
	cfg := k.Fleet
	cfg.NodeName = mac.Name
	cfg.SSHUser, cfg.UserPassword = cmp.Or(access.User, mac.Status.SSHUser), access.Password
	cfg.ProviderID = mac.Status.ProviderID
	cfg.DisableVMGC = mac.Spec.DisableVMGC
	cfg.HostCPU = int(firstSet(mac.Spec.HostCPU, mac.Status.HostCPU))
	cfg.HostMemoryMB = int(firstSet(mac.Spec.HostMemoryMB, mac.Status.HostMemoryMB))

	if cfg.VMCachePNCIDR != "" {
		cfg.VMCachePNVLAN = int(mac.Spec.PrivateNetworkVLAN)
	}

	// It is pushed to the host, which is as much as sent.
	to := credential.To(access.Servers()...)

	var err error
	if cfg.Kubeconfig, err = machine.Kubeconfig(ctx, secrets, mac.Namespace, mac.Spec.KubeconfigSecretRef, access, to); err != nil {
		return plan.Plan{}, err
	}

	if ref := mac.Spec.TailscaleAuthKeySecretRef; cfg.Tailnet && ref != nil {
		if cfg.TailscaleAuthKey, err = secrets.Secret(ctx, mac.Namespace, *ref, to); err != nil {
			return plan.Plan{}, err
		}
	}

	p, err := macplan.Render(cfg)
	if err != nil {
		return plan.Plan{}, errclass.Wrap(errclass.Configuration, "ConfigNotRendered", err)
	}

	return p, nil
}

// AskOS asks sw_vers and softwareupdate. The host's user owns its volumes, and its password, which
// Scaleway tells, is what an installation asks for.
func (k *Kind) AskOS(_ machine.Object, access machine.Access, ask machine.OSAsk) (plan.Part, bool) {
	return macplan.AskMacOS(macplan.Question{
		Step: string(ask.Step), Version: ask.Version, Label: ask.Label, Attempt: ask.Attempt,
		User: access.User, Password: access.Password,
	}), true
}

// Stamp notes which kubelet was pushed.
func (k *Kind) Stamp(host machine.Object) {
	macOf(host).Status.TartKubeletBinarySHA = k.Fleet.TartKubeletBinary.SHA256()
}

func firstSet(a, b int32) int32 {
	if a != 0 {
		return a
	}

	return b
}

// api gives a client with the machine's API key.
func (k *Kind) api(ctx context.Context, mac *v1alpha1.ScalewayAppleSiliconMachine) (*scaleway.Client, error) {
	var to credential.Sent

	read := func(key string) (log.Secret, error) {
		return k.Secrets.Secret(ctx, mac.Namespace,
			v1alpha1.LocalSecretKeySelector{Name: mac.Spec.CredentialsSecretRef.Name, Key: key}, to)
	}

	endpoint, err := read(v1alpha1.ScalewayAPIURL)
	if err != nil && errclass.Of(err) != errclass.Configuration { // the key may be left away
		return nil, err
	}

	// Whoever wrote the Secret wrote the endpoint that is in it.
	to = credential.ToURL(cmp.Or(endpoint.Reveal(), scaleway.Endpoint))

	access, err := read(v1alpha1.ScalewayAccessKey)
	if err != nil {
		return nil, err
	}

	secret, err := read(v1alpha1.ScalewaySecretKey)
	if err != nil {
		return nil, err
	}

	project, err := read(v1alpha1.ScalewayProjectID)
	if err != nil {
		return nil, err
	}

	api, err := scaleway.New(scaleway.Config{
		AccessKey: access.Reveal(), SecretKey: secret, ProjectID: project.Reveal(), Endpoint: endpoint.Reveal(),
		Zone: mac.Spec.Zone, Network: k.Reach.Transport(), Transport: k.Transport, Clock: k.Clock,
	})
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", mac.Spec.CredentialsSecretRef.Name, err)
	}

	return api, nil
}

// publicKey of the key that the operator logs in with, as a line of authorized_keys.
func (k *Kind) publicKey(ctx context.Context, mac *v1alpha1.ScalewayAppleSiliconMachine) (string, error) {
	ref := mac.Spec.SSHKeySecretRef

	// It is read for its public half.
	key, err := k.Secrets.Secret(ctx, mac.Namespace, ref, credential.Sent{})
	if err != nil {
		return "", err
	}

	if err := inputbound.Key([]byte(key.Reveal())); err != nil {
		return "", errclass.New(errclass.Configuration, "SSHKeyInvalid", "secret %s, key %s: %w", ref.Name, ref.Key, err)
	}

	signer, err := ssh.ParsePrivateKey([]byte(key.Reveal()))
	if err != nil {
		// The library's words could quote what it was given.
		return "", errclass.New(errclass.Configuration, "SSHKeyInvalid",
			"secret %s, key %s: must be a private key as OpenSSH or PEM text, without a passphrase", ref.Name, ref.Key)
	}

	return string(ssh.MarshalAuthorizedKey(signer.PublicKey())), nil
}
