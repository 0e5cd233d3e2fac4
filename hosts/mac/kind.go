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
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=scalewayapplesiliconmachines,verbs=get;list;watch;patch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=scalewayapplesiliconmachines/status,verbs=patch

// Name is the name of the kind.
const Name = "ScalewayAppleSiliconMachine"

// Options are the dependencies and settings of a Kind.
type Options struct {
	// APIReader reads from the API server, not from a cache. Required.
	APIReader client.Reader
	// Secrets reads the API keys. Required.
	Secrets machine.Secrets
	// Fleet is the configuration that all Macs share ([Load]). Without its kubelet, nothing is
	// pushed to any Mac.
	Fleet macplan.Config
	// Clock is the source of time. Default: the real clock.
	Clock clock.Clock
	// Transport wraps the transport to Scaleway's API, for example for metrics. It may be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Egress limits the addresses of the API endpoints that Secrets may name. If Egress is nil, only
	// public addresses are allowed.
	Egress *bounds.EgressPolicy
}

// Kind implements machine.Kind for ScalewayAppleSiliconMachines.
type Kind struct {
	Options

	hash string
	// adoptLock is held while a server of a pool is chosen and recorded.
	adoptLock sync.Mutex
}

var _ machine.Kind = (*Kind)(nil)

// New returns the kind, and computes the hash of the shared configuration.
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

// Name returns the name of the kind.
func (k *Kind) Name() string { return Name }

// New returns an empty object.
func (k *Kind) New() machine.Object { return &v1alpha1.ScalewayAppleSiliconMachine{} }

// NewList returns an empty list.
func (k *Kind) NewList() client.ObjectList { return &v1alpha1.ScalewayAppleSiliconMachineList{} }

// FleetName returns the name of the machine's fleet.
func (k *Kind) FleetName(host machine.Object) string { return macOf(host).Spec.FleetName }

// NewLike returns a Mac with the spec of another Mac, so it is ordered or adopted in the same way.
// The VLAN of the private network, the fallback addresses and the host key belong to one Mac and
// are left out.
func (k *Kind) NewLike(host machine.Object) machine.Object {
	out := &v1alpha1.ScalewayAppleSiliconMachine{Spec: *macOf(host).Spec.DeepCopy()}
	out.Spec.PrivateNetworkVLAN, out.Spec.FallbackAddresses, out.Spec.SSHHostKey = 0, nil, ""

	return out
}

// Hash returns the digest of what all Macs get. It is empty without a kubelet.
func (k *Kind) Hash() string { return k.hash }

// macOf returns the host as a ScalewayAppleSiliconMachine. It panics for other types, but package
// machine only passes objects that New returned.
func macOf(host machine.Object) *v1alpha1.ScalewayAppleSiliconMachine {
	mac, ok := host.(*v1alpha1.ScalewayAppleSiliconMachine)
	if !ok {
		panic(fmt.Sprintf("a host of kind %s is a %T", Name, host))
	}

	return mac
}

// serverName returns the name that ties a server to its machine. It contains the UID, so a
// recreated machine has another server name.
func serverName(mac *v1alpha1.ScalewayAppleSiliconMachine) string {
	return ourPrefix + mac.Name + "-" + string(mac.UID)
}

// ourPrefix is the prefix of the names of all servers that belong to machines. The prefix of a pool
// must differ.
const ourPrefix = "hf-"

// Access returns the address, the user and the password that Scaleway's API reports, the fallback addresses
// of the spec, and the SSH private key of the Secret that the spec names. The password changes with each
// installation and is not stored anywhere else. Access returns an error if the server no longer belongs to
// the machine, or if the Secret does not allow its use for these addresses.
func (k *Kind) Access(ctx context.Context, secrets machine.Secrets, host machine.Object) (machine.Access, error) {
	mac := macOf(host)

	api, err := k.newClient(ctx, mac)
	if err != nil {
		return machine.Access{}, err
	}

	server, err := api.Get(ctx, mac.Status.ServerID)
	if err != nil {
		return machine.Access{}, fmt.Errorf("get SSH login: %w", err)
	}

	// The name shows the server's owner. Push nothing to a server that belongs to another machine
	// now.
	if server.Name != serverName(mac) {
		return machine.Access{}, errclass.New(errclass.Configuration, "ServerRenamed",
			"server %s was renamed to %q at Scaleway: rename it to %s, or delete this machine",
			server.ID, server.Name, serverName(mac))
	}

	if server.IP == "" || server.SSHUser == "" {
		return machine.Access{}, errclass.New(errclass.Transient, "ServerWithoutAddress",
			"server %s has no IP address or no SSH user yet: its status is %s", server.ID, server.Status)
	}

	access := machine.Access{
		Address:   net.JoinHostPort(server.IP, strconv.Itoa(int(mac.Spec.SSHPort))),
		Fallbacks: machine.JoinHostsPort(mac.Spec.FallbackAddresses, mac.Spec.SSHPort),
		User:      server.SSHUser, Password: server.Password,
	}

	servers := credential.NewDestination(access.Servers()...)
	access.PrivateKey, err = secrets.Secret(ctx, mac.Namespace, mac.Spec.SSHKeySecretRef, servers)
	if err != nil {
		return machine.Access{}, err
	}

	return access, nil
}

// HostKeys returns what the spec says about the host's key. Scaleway's API does not return host
// keys.
func (k *Kind) HostKeys(host machine.Object) machine.HostKeys {
	return machine.NewHostKeys(macOf(host).Spec.SSHHostKeys)
}

// HasKubeconfig returns true if the spec names a kubeconfig.
func (k *Kind) HasKubeconfig(host machine.Object) bool {
	return macOf(host).Spec.KubeconfigSecretRef.Name != ""
}

// RenderPlan renders the plan of the Mac.
func (k *Kind) RenderPlan(
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
	cfg.HostCPU = int(cmp.Or(mac.Spec.HostCPU, mac.Status.HostCPU))
	cfg.HostMemoryMB = int(cmp.Or(mac.Spec.HostMemoryMB, mac.Status.HostMemoryMB))

	if cfg.VMCachePNCIDR != "" {
		cfg.VMCachePNVLAN = int(mac.Spec.PrivateNetworkVLAN)
	}

	// The Secret is pushed to the host, so the host must be an allowed destination of the Secret.
	destination := credential.NewDestination(access.Servers()...)

	var err error

	cfg.Kubeconfig, err = machine.Kubeconfig(ctx, secrets, mac.Namespace, mac.Spec.KubeconfigSecretRef, access, destination)
	if err != nil {
		return plan.Plan{}, err
	}

	if ref := mac.Spec.TailscaleAuthKeySecretRef; cfg.Tailnet && ref != nil {
		if cfg.TailscaleAuthKey, err = secrets.Secret(ctx, mac.Namespace, *ref, destination); err != nil {
			return plan.Plan{}, err
		}
	}

	p, err := macplan.Render(cfg)
	if err != nil {
		return plan.Plan{}, errclass.Wrap(errclass.Configuration, "ConfigNotRendered", err)
	}

	return p, nil
}

// RenderOSStep returns the script of a step of a macOS update. It runs sw_vers and softwareupdate. An
// installation needs the password of a volume owner. This is the SSH user, whose password the Scaleway API
// returns.
func (k *Kind) RenderOSStep(_ machine.Object, access machine.Access, params machine.OSStepParams) (plan.Part, bool) {
	return macplan.NewOSStep(macplan.OSStepParams{
		Step: string(params.Step), Version: params.Version, Label: params.Label, Attempt: params.Attempt,
		User: access.User, Password: access.Password,
	}), true
}

// RecordPush records the digest of the kubelet that was pushed.
func (k *Kind) RecordPush(host machine.Object) {
	macOf(host).Status.TartKubeletBinarySHA = k.Fleet.TartKubeletBinary.SHA256()
}

// newClient returns a Scaleway client with the machine's API key.
func (k *Kind) newClient(ctx context.Context, mac *v1alpha1.ScalewayAppleSiliconMachine) (*scaleway.Client, error) {
	read := func(key string, destination credential.Destination) (log.Secret, error) {
		return k.Secrets.Secret(ctx, mac.Namespace,
			v1alpha1.LocalSecretKeySelector{Name: mac.Spec.CredentialsSecretRef.Name, Key: key}, destination)
	}

	endpoint, err := read(v1alpha1.ScalewayAPIURL, credential.Destination{})
	if err != nil && errclass.ClassOf(err) != errclass.Configuration { // the key is optional
		return nil, err
	}

	// The author of the Secret chose the endpoint in it, so the endpoint is an allowed destination
	// of the key.
	destination := credential.DestinationOfURL(cmp.Or(endpoint.Reveal(), scaleway.Endpoint))

	accessKey, err := read(v1alpha1.ScalewayAccessKey, destination)
	if err != nil {
		return nil, err
	}

	secretKey, err := read(v1alpha1.ScalewaySecretKey, destination)
	if err != nil {
		return nil, err
	}

	projectID, err := read(v1alpha1.ScalewayProjectID, destination)
	if err != nil {
		return nil, err
	}

	api, err := scaleway.New(scaleway.Config{
		AccessKey: accessKey.Reveal(), SecretKey: secretKey, ProjectID: projectID.Reveal(), Endpoint: endpoint.Reveal(),
		Zone: mac.Spec.Zone, Network: k.Egress.Transport(), Transport: k.Transport, Clock: k.Clock,
	})
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", mac.Spec.CredentialsSecretRef.Name, err)
	}

	return api, nil
}

// publicKey returns the public half of the key with which the operator logs in, as a line of
// authorized_keys.
func (k *Kind) publicKey(ctx context.Context, mac *v1alpha1.ScalewayAppleSiliconMachine) (string, error) {
	ref := mac.Spec.SSHKeySecretRef

	// Only the public half of the key is used, so the Secret has no destination.
	key, err := k.Secrets.Secret(ctx, mac.Namespace, ref, credential.Destination{})
	if err != nil {
		return "", err
	}

	if err := bounds.CheckPrivateKey([]byte(key.Reveal())); err != nil {
		return "", errclass.New(errclass.Configuration, "SSHKeyInvalid", "secret %s, key %s: %w", ref.Name, ref.Key, err)
	}

	signer, err := ssh.ParsePrivateKey([]byte(key.Reveal()))
	if err != nil {
		// The library's error could contain the private key.
		return "", errclass.New(errclass.Configuration, "SSHKeyInvalid",
			"secret %s, key %s: must be an OpenSSH or PEM private key without a passphrase", ref.Name, ref.Key)
	}

	return string(ssh.MarshalAuthorizedKey(signer.PublicKey())), nil
}
