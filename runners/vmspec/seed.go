// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/workload"
)

// ReasonNetworkDataInvalid is the reason of the error that a template's cloudInit.networkData is not valid
// network data, or has no interface for the addresses of the pool.
const ReasonNetworkDataInvalid = "NetworkDataInvalid"

// Settings apply to every machine of the operator.
type Settings struct {
	// OperatorUID identifies the runners of this operator.
	OperatorUID string
	// NamespaceInHostname makes host names have the form NAMESPACE-CLAIM.
	NamespaceInHostname bool
	// GuestURL is the URL at which machines reach the operator. It is empty if they cannot reach it.
	GuestURL string
	// GuestCABundle returns the current CA bundle of GuestURL in PEM. If it is nil or returns "", machines use
	// their own trust store.
	GuestCABundle func() string
	// ReportKey is the key from which report tokens, claim codes and device identity codes are derived.
	ReportKey []byte
	// TrustDomain is the trust domain of the machines' SPIFFE IDs, without spiffe://. It is empty if the
	// operator has no SPIRE server.
	TrustDomain string
	// HasDevIDAuthority is true if the operator has a CA that signs device identities of machines with a TPM.
	HasDevIDAuthority bool
	// BootstrapServices holds the bootstrap service's binaries for bootstrap.delivery download and iso, keyed by
	// GitHub's name of the architecture.
	BootstrapServices map[string]Program
}

func (s Settings) caBundle() string {
	if s.GuestCABundle == nil {
		return ""
	}

	return s.GuestCABundle()
}

// Program is a bootstrap service that machines download or get on their ISO.
type Program struct {
	// Content is read only when a machine needs the program. A program has 15 MB for each architecture, which
	// would be most of the memory of an idle operator.
	Content io.ReaderAt
	// Size is the size of Content in bytes.
	Size int64
	// SHA256 is the checksum of Content in hexadecimal.
	SHA256 string
}

// RunnerName returns the name of the claim's runner: the name in the claim's spec, or else a name that is
// unique to the claim.
func RunnerName(claim *v1alpha1.MachineClaim) string {
	if config := claim.Spec.WorkloadConfig.Config; config != nil && config.GitHub != nil && config.GitHub.RunnerName != "" {
		return config.GitHub.RunnerName
	}

	return workload.RunnerName(claim.Name, claim.UID)
}

// OperatorLabel returns the label of the runners of one operator. With it the operator recognizes its own
// orphaned runners.
func OperatorLabel(operatorUID string) string {
	sum := sha256.Sum256([]byte(operatorUID))

	return "hf-op-" + hex.EncodeToString(sum[:5])
}

// NewRunnerRequest returns the request for the claim's runner to the CI platform.
func NewRunnerRequest(claim *v1alpha1.MachineClaim, runner workload.RunnerSpec, settings Settings) workload.RunnerRequest {
	request := workload.RunnerRequest{
		Name:           RunnerName(claim),
		Labels:         append(slices.Clone(runner.Labels), OperatorLabel(settings.OperatorUID)),
		Group:          runner.Group,
		WorkDir:        runner.Program.WorkDir,
		Registration:   runner.Registration,
		CanRunUntagged: runner.CanRunUntagged,
		Description:    runner.Description,
	}
	if size := claim.Spec.Size; size != nil {
		request.Labels = append(request.Labels, size.Labels...)
	}

	if l := claim.Spec.Lifecycle; l != nil && l.BootstrapTimeout != nil {
		request.Timeout = l.BootstrapTimeout.Duration
	}

	return request
}

// Input holds everything from which the cloud-init ISO of a machine is rendered.
type Input struct {
	Claim    *v1alpha1.MachineClaim
	Template *v1alpha1.HypervisorMachineTemplate
	Names    Names
	Runner   workload.RunnerSpec
	Request  workload.RunnerRequest
	// Credential is empty with bootstrap methods callback and external-secrets.
	Credential workload.Credential
	// Attestation is the data with which a machine with an identity attests.
	Attestation identity.Attestation
	Settings    Settings
}

// RenderSeed renders the contents of the machine's cloud-init ISO. The ISO holds the only credential that
// the machine ever gets. With bootstrap method callback the ISO holds the code for this credential instead.
// With attestation it also holds the data with which the machine attests.
func RenderSeed(in Input) (hypervisor.Seed, error) {
	deliveryMethod := in.Template.Spec.Bootstrap.Delivery
	isDelivered := isServiceDelivered(in.Template)

	if in.Template.IsWindows() && isDelivered {
		return hypervisor.Seed{}, newDeliveryError(in.Template)
	}

	program, ok := in.Settings.BootstrapServices[architecture(in.Runner)]

	if !ok && isDelivered {
		return hypervisor.Seed{}, newMissingProgramError(in.Template, in.Runner)
	}

	addresses, err := ParseAddresses(in.Claim)
	if err != nil {
		return hypervisor.Seed{}, err
	}

	input := newRenderInput(in, newGuestConfig(in))
	input.Addresses = addresses

	out, err := cloudinit.Render(input)
	if err != nil {
		reason := "CloudInitInvalid"
		if errors.Is(err, cloudinit.ErrNetworkData) {
			reason = ReasonNetworkDataInvalid
		}

		return hypervisor.Seed{}, errclass.Wrap(errclass.Configuration, reason,
			fmt.Errorf("render cloud-init of template %s: %w", in.Template.Name, err))
	}

	seed := hypervisor.Seed{UserData: out.UserData, MetaData: out.MetaData, NetworkConfig: out.NetworkConfig}
	if deliveryMethod == v1alpha1.DeliveryISO {
		content, err := program.readVerified()
		if err != nil {
			return hypervisor.Seed{}, err
		}

		seed.Files = map[string][]byte{cloudinit.BootstrapServiceFile: content}
	}

	return seed, nil
}

func newMissingProgramError(template *v1alpha1.HypervisorMachineTemplate, runner workload.RunnerSpec) error {
	return errclass.New(errclass.Configuration, "BootstrapServiceMissing",
		"deliver the bootstrap service to machines of template %s: the operator has no bootstrap service for architecture %s: "+
			"set guest.bootstrapServices in its configuration, or use delivery image",
		template.Name, architecture(runner))
}

// newGuestConfig returns the configuration of the bootstrap service. It contains the credential only if the
// bootstrap method delivers it with the cloud-init data.
func newGuestConfig(in Input) *guest.Config {
	config := &guest.Config{
		Method:      in.Template.Spec.Bootstrap.Method,
		Platform:    in.Runner.Platform,
		RunnerName:  in.Request.Name,
		RunnerGroup: in.Request.Group,
		Labels:      in.Request.Labels,
		Runner:      in.Runner.Program,
		Command:     in.Runner.Command,
		Traceparent: tracing.FormatTraceparent(tracing.RootForUID(string(in.Claim.UID))),
	}

	config.SPIFFE = newSPIFFE(in)
	config.Environment, config.Cache = newEnvironmentAndCache(&in.Template.Spec)

	switch config.Method {
	case v1alpha1.BootstrapCallback:
		config.Callback = newCallback(in)
	case v1alpha1.BootstrapExternalSecrets:
		config.Secrets = newSecretsConfig(in)
	default:
		in.Credential.Apply(config)
	}

	if l := in.Claim.Spec.Lifecycle; l != nil {
		config.IdleTimeout, config.JobTimeout = toGuestDuration(l.IdleTimeout), toGuestDuration(l.JobTimeout)
	}

	if in.Settings.GuestURL != "" {
		config.Report = &guest.ReportTo{
			URL:      in.Settings.GuestURL + ReportPath(in.Claim),
			Token:    ReportToken(in.Settings.ReportKey, in.Claim.Namespace, in.Claim.Name, in.Claim.UID),
			CABundle: in.Settings.caBundle(),
		}
	}

	return config
}

// newEnvironmentAndCache returns the environment variables of the template, which are nil if it has none,
// and its caches.
func newEnvironmentAndCache(spec *v1alpha1.HypervisorMachineTemplateSpec) (map[string]string, *guest.Cache) {
	var environment map[string]string

	for name, value := range spec.Environment {
		if environment == nil {
			environment = make(map[string]string, len(spec.Environment))
		}

		environment[name] = string(value)
	}

	if spec.Cache == nil {
		return environment, nil
	}

	return environment, &guest.Cache{
		RegistryMirrors: toStrings(spec.Cache.RegistryMirrors), ActionsURL: string(spec.Cache.ActionsCacheURL),
	}
}

// newCallback returns the endpoint for the machine's credential, with the claim code or with the audience
// of the JWT-SVID.
func newCallback(in Input) *guest.Callback {
	out := &guest.Callback{URL: in.Settings.GuestURL + CredentialPath(in.Claim), CABundle: in.Settings.caBundle()}

	if RequiredProof(in.Claim) == v1alpha1.ProofSVID {
		out.Audience = CallbackAudience(in.Settings)
	} else {
		out.Code = ClaimCode(in.Settings.ReportKey, in.Claim.Namespace, in.Claim.Name, in.Claim.UID)
	}

	return out
}

func toGuestDuration(d *metav1.Duration) guest.Duration {
	if d == nil {
		return 0
	}

	return guest.Duration(d.Duration)
}

// newRenderInput returns what cloudinit.Render needs to render the cloud-init ISO of a machine.
func newRenderInput(in Input, config *guest.Config) cloudinit.Input {
	spec := &in.Template.Spec
	out := cloudinit.Input{
		Config:     config,
		InstanceID: string(in.Claim.UID),
		Hostname:   in.Names.Hostname,
		FQDN:       in.Names.FQDN,
		Network:    spec.Network,
		DNS:        v1alpha1.MachineDNS{Domain: in.Names.Domain, Search: in.Names.SearchDomains, Servers: in.Names.DNSServers},
		Delivery:   newServiceDelivery(in),
		Vars:       newVars(in, config),
	}

	if spec.CloudInit != nil {
		out.UserData, out.MetaData, out.NetworkData = spec.CloudInit.UserData, spec.CloudInit.MetaData, spec.CloudInit.NetworkData
	}

	return out
}

// architecture returns GitHub's name of the architecture of the runner's machine. Default: x64.
func architecture(runner workload.RunnerSpec) string { return cmp.Or(runner.Program.Arch, "x64") }

// toUname converts GitHub's name of an architecture to the name that `uname -m` prints. It converts unknown
// names to x86_64.
func toUname(arch string) string {
	switch arch {
	case "arm64":
		return "aarch64"
	case "arm":
		return "armv7l"
	default:
		return "x86_64"
	}
}

// newServiceDelivery returns how the bootstrap service gets into the machine.
func newServiceDelivery(in Input) cloudinit.Delivery {
	out := cloudinit.Delivery{
		Method: in.Template.Spec.Bootstrap.Delivery, URL: in.Settings.GuestURL, CABundle: in.Settings.caBundle(),
		SHA256: map[string]string{},
	}
	for arch, program := range in.Settings.BootstrapServices {
		out.SHA256[toUname(arch)] = program.SHA256
	}

	return out
}

func newVars(in Input, config *guest.Config) cloudinit.Vars {
	spec := &in.Template.Spec
	out := cloudinit.Vars{
		WorkloadMethod:  spec.Bootstrap.Method,
		BootstrapMethod: spec.Bootstrap.Method,
		RunnerToken:     in.Credential.RunnerToken,
		JITConfig:       in.Credential.JITConfig,
		RegistrationURL: in.Credential.RegistrationURL,
		RunnerName:      in.Request.Name,
		Labels:          in.Request.Labels,
		RunnerConfig: cloudinit.RunnerConfig{
			DownloadUrl: config.Runner.DownloadURL, DownloadSHA256: config.Runner.DownloadSHA256,
			InstallPath: config.Runner.InstallPath, WorkDir: config.Runner.WorkDir,
			ConfigScript: config.Runner.ConfigScript, RunScript: config.Runner.RunScript,
			OS: config.Runner.OS, Arch: config.Runner.Arch,
		},
		BootstrapServiceURL: in.Settings.GuestURL,
		Hostname:            in.Names.Hostname,
		FQDN:                in.Names.FQDN,
		NetworkMode:         v1alpha1.NetworkModeDHCP,
		DNSServers:          in.Names.DNSServers,
		Namespace:           in.Claim.Namespace,
		ClaimName:           in.Claim.Name,
	}

	if program, ok := in.Settings.BootstrapServices[config.Runner.Arch]; ok {
		out.BootstrapServiceBinary = cloudinit.NewBinary(program.Content, program.Size)
	}

	if !in.Credential.ExpiresAt.IsZero() {
		out.ExpiresAt = in.Credential.ExpiresAt.UTC().Format(time.RFC3339)
	}

	if s := config.SPIFFE; s != nil {
		out.SPIFFEEnabled, out.AttestationMethod = true, s.Method
		out.JoinToken, out.SPIFFEID, out.TPMDevice = s.JoinToken, s.SPIFFEID, s.TPMDevice
	}

	out.PoolName = in.Claim.PoolName()

	addNetwork(&out, in.Claim, spec.Network)

	return out
}

// addNetwork sets the template variables of the network. An address pool takes precedence over a static
// address.
func addNetwork(out *cloudinit.Vars, claim *v1alpha1.MachineClaim, network *v1alpha1.MachineNetwork) {
	if network == nil {
		return
	}

	if network.Mode != "" {
		out.NetworkMode = network.Mode
	}

	if pool := network.AddressPool(); pool != nil {
		addPoolAddresses(out, claim, pool)

		return
	}

	if static := network.Static; static != nil && static.IPAddress != "" {
		out.Addresses = cloudinit.List{static.IPAddress + "/" + strconv.Itoa(ParseNetmask(static.Netmask))}
		if static.Gateway != "" {
			out.Gateways = cloudinit.List{static.Gateway}
		}

		out.StaticIP, out.NetmaskBits, out.Gateway = static.IPAddress, ParseNetmask(static.Netmask), static.Gateway
		if len(static.DNS) > 0 {
			out.DNSServers = static.DNS
		}
	}
}

// addPoolAddresses sets the variables for the addresses that the machine was allocated from a pool.
// Variables for a single address hold the first address, which is the IPv4 address if there is one.
func addPoolAddresses(out *cloudinit.Vars, claim *v1alpha1.MachineClaim, pool *v1alpha1.AddressPool) {
	out.Gateways = toStrings(pool.Gateway)
	if len(pool.Nameservers) > 0 {
		out.DNSServers = toStrings(pool.Nameservers)
	}

	addresses, err := ParseAddresses(claim)
	if err != nil || len(addresses) == 0 {
		return
	}

	out.Addresses = claim.Status.NetworkInfo.Addresses
	out.StaticIP, out.NetmaskBits = addresses[0].Addr().String(), addresses[0].Bits()

	for _, text := range out.Gateways {
		if gateway, err := netip.ParseAddr(text); err == nil && gateway.Is4() == addresses[0].Addr().Is4() {
			out.Gateway = text
		}
	}
}
