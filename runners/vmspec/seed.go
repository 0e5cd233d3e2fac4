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

// ReasonNetworkDataInvalid says that a template's cloudInit.networkData is no network
// data, or lacks the interface that a pool's addresses are for.
const ReasonNetworkDataInvalid = "NetworkDataInvalid"

// Settings hold for every machine of the operator.
type Settings struct {
	// OperatorUID marks the operator's runners.
	OperatorUID string
	// NamespaceInHostname makes host names NAMESPACE-CLAIM.
	NamespaceInHostname bool
	// GuestURL is the operator's server as machines see it; empty where they can't.
	GuestURL string
	// GuestCABundle gives what verifies it at present, in PEM. Nil, or empty: what the machine
	// itself trusts.
	GuestCABundle func() string
	// ReportKey is what the tokens that machines report with are made of, and their claim
	// codes.
	ReportKey []byte
	// TrustDomain of the machines' identities, without spiffe://; empty where the operator has
	// no SPIRE server.
	TrustDomain string
	// DevID says that the operator has an authority over device identities, for machines with
	// a TPM.
	DevID bool
	// BootstrapServices are the programs for the deliveries download and iso, by GitHub's
	// name of the architecture.
	BootstrapServices map[string]Program
}

func (s Settings) caBundle() string {
	if s.GuestCABundle == nil {
		return ""
	}

	return s.GuestCABundle()
}

// Program is a bootstrap service to hand out.
type Program struct {
	// Content is the program itself. It is read when a machine wants it: it has 15 MB for
	// each architecture, which would be most of what an operator at rest takes.
	Content io.ReaderAt
	// Size of Content in bytes.
	Size int64
	// SHA256 of Content, in hexadecimal.
	SHA256 string
}

// RunnerName is the name of the claim's runner: the one that the claim asks for, or one
// that no other claim has.
func RunnerName(claim *v1alpha1.MachineClaim) string {
	if config := claim.Spec.WorkloadConfig.Config; config != nil && config.GitHub != nil && config.GitHub.RunnerName != "" {
		return config.GitHub.RunnerName
	}

	return workload.RunnerName(claim.Name, claim.UID)
}

// OperatorLabel marks the runners of one operator, so that those it left behind can be
// told from everybody else's.
func OperatorLabel(operatorUID string) string {
	sum := sha256.Sum256([]byte(operatorUID))

	return "hf-op-" + hex.EncodeToString(sum[:5])
}

// RunnerRequest is the runner that the claim wants.
func RunnerRequest(claim *v1alpha1.MachineClaim, runner workload.RunnerSpec, settings Settings) workload.RunnerRequest {
	request := workload.RunnerRequest{
		Name:         RunnerName(claim),
		Labels:       append(slices.Clone(runner.Labels), OperatorLabel(settings.OperatorUID)),
		Group:        runner.Group,
		WorkDir:      runner.Program.WorkDir,
		Registration: runner.Registration,
		Untagged:     runner.Untagged,
		Description:  runner.Description,
	}
	if size := claim.Spec.Size; size != nil {
		request.Labels = append(request.Labels, size.Labels...)
	}

	if l := claim.Spec.Lifecycle; l != nil && l.BootstrapTimeout != nil {
		request.Timeout = l.BootstrapTimeout.Duration
	}

	return request
}

// Input is all that a machine's cloud-init ISO is made from.
type Input struct {
	Claim    *v1alpha1.MachineClaim
	Template *v1alpha1.HypervisorMachineTemplate
	Names    Names
	Runner   workload.RunnerSpec
	Request  workload.RunnerRequest
	// Credential is empty with bootstrap methods callback and external-secrets.
	Credential workload.Credential
	// Attestation is what a machine with an identity attests with.
	Attestation identity.Attestation
	Settings    Settings
}

// Seed renders the machine's cloud-init ISO. It holds the one credential that the machine
// will ever have; with bootstrap method callback the code that it gets it for, instead, and
// with an attestation what it proves its identity with.
func Seed(in Input) (hypervisor.Seed, error) {
	delivered := in.Template.Spec.Bootstrap.Delivery
	program, ok := in.Settings.BootstrapServices[architecture(in.Runner)]

	if !ok && (delivered == v1alpha1.DeliveryISO || delivered == v1alpha1.DeliveryDownload) {
		return hypervisor.Seed{}, noProgram(in.Template, in.Runner)
	}

	addresses, err := Addresses(in.Claim)
	if err != nil {
		return hypervisor.Seed{}, err
	}

	input := renderInput(in, guestConfig(in))
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
	if delivered == v1alpha1.DeliveryISO {
		content, err := program.read()
		if err != nil {
			return hypervisor.Seed{}, err
		}

		seed.Files = map[string][]byte{cloudinit.BootstrapServiceFile: content}
	}

	return seed, nil
}

func noProgram(template *v1alpha1.HypervisorMachineTemplate, runner workload.RunnerSpec) error {
	return errclass.New(errclass.Configuration, "BootstrapServiceMissing",
		"deliver the bootstrap service to machines of template %s: the operator has none for architecture %s: "+
			"set guest.bootstrapServices in its configuration, or use delivery image",
		template.Name, architecture(runner))
}

func guestConfig(in Input) *guest.Config {
	config := &guest.Config{
		Method:      in.Template.Spec.Bootstrap.Method,
		Platform:    in.Runner.Platform,
		RunnerName:  in.Request.Name,
		RunnerGroup: in.Request.Group,
		Labels:      in.Request.Labels,
		Runner:      in.Runner.Program,
		Command:     in.Runner.Command,
		Traceparent: tracing.Traceparent(tracing.RootOf(string(in.Claim.UID))),
	}

	config.SPIFFE = spiffe(in)
	config.Environment, config.Cache = conveniences(&in.Template.Spec)

	switch config.Method {
	case v1alpha1.BootstrapCallback:
		config.Callback = callback(in)
	case v1alpha1.BootstrapExternalSecrets:
		config.Secrets = secrets(in)
	default:
		in.Credential.Apply(config)
	}

	if l := in.Claim.Spec.Lifecycle; l != nil {
		config.IdleTimeout, config.JobTimeout = duration(l.IdleTimeout), duration(l.JobTimeout)
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

// conveniences are the template's environment and caches.
func conveniences(spec *v1alpha1.HypervisorMachineTemplateSpec) (map[string]string, *guest.Cache) {
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
		RegistryMirrors: texts(spec.Cache.RegistryMirrors), ActionsURL: string(spec.Cache.ActionsCacheURL),
	}
}

// callback is where the machine gets its credential, and by what proof.
func callback(in Input) *guest.Callback {
	out := &guest.Callback{URL: in.Settings.GuestURL + CredentialPath(in.Claim), CABundle: in.Settings.caBundle()}

	if Proof(in.Claim) == v1alpha1.ProofSVID {
		out.Audience = CallbackAudience(in.Settings)
	} else {
		out.Code = ClaimCode(in.Settings.ReportKey, in.Claim.Namespace, in.Claim.Name, in.Claim.UID)
	}

	return out
}

func duration(d *metav1.Duration) guest.Duration {
	if d == nil {
		return 0
	}

	return guest.Duration(d.Duration)
}

func renderInput(in Input, config *guest.Config) cloudinit.Input {
	spec := &in.Template.Spec
	out := cloudinit.Input{
		Config:     config,
		InstanceID: string(in.Claim.UID),
		Hostname:   in.Names.Hostname,
		FQDN:       in.Names.FQDN,
		Network:    spec.Network,
		DNS:        v1alpha1.MachineDNS{Domain: in.Names.Domain, Search: in.Names.Search, Servers: in.Names.Servers},
		Delivery:   delivery(in),
		Vars:       vars(in, config),
	}

	if spec.CloudInit != nil {
		out.UserData, out.MetaData, out.NetworkData = spec.CloudInit.UserData, spec.CloudInit.MetaData, spec.CloudInit.NetworkData
	}

	return out
}

// architecture of the runner's machine, in GitHub's names.
func architecture(runner workload.RunnerSpec) string { return cmp.Or(runner.Program.Arch, "x64") }

// uname maps GitHub's names of architectures to those of `uname -m`.
func uname(arch string) string {
	switch arch {
	case "arm64":
		return "aarch64"
	case "arm":
		return "armv7l"
	default:
		return "x86_64"
	}
}

func delivery(in Input) cloudinit.Delivery {
	out := cloudinit.Delivery{
		Method: in.Template.Spec.Bootstrap.Delivery, URL: in.Settings.GuestURL, CABundle: in.Settings.caBundle(),
		SHA256: map[string]string{},
	}
	for arch, program := range in.Settings.BootstrapServices {
		out.SHA256[uname(arch)] = program.SHA256
	}

	return out
}

func vars(in Input, config *guest.Config) cloudinit.Vars {
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
		DNSServers:          in.Names.Servers,
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

	if in.Claim.Spec.RunnerPoolRef != nil {
		out.PoolName = in.Claim.Spec.RunnerPoolRef.Name
	}

	addNetwork(&out, in.Claim, spec.Network)

	return out
}

func addNetwork(out *cloudinit.Vars, claim *v1alpha1.MachineClaim, network *v1alpha1.MachineNetwork) {
	if network == nil {
		return
	}

	if network.Mode != "" {
		out.NetworkMode = network.Mode
	}

	if pool := network.AddressPool(); pool != nil {
		addPool(out, claim, pool)

		return
	}

	if static := network.Static; static != nil && static.IPAddress != "" {
		out.Addresses = cloudinit.List{static.IPAddress + "/" + strconv.Itoa(MaskBits(static.Netmask))}
		if static.Gateway != "" {
			out.Gateways = cloudinit.List{static.Gateway}
		}

		out.StaticIP, out.NetmaskBits, out.Gateway = static.IPAddress, MaskBits(static.Netmask), static.Gateway
		if len(static.DNS) > 0 {
			out.DNSServers = static.DNS
		}
	}
}

// addPool gives templates what the machine was given of a pool. The variables for one
// address are of the first, which is the IPv4 address where there is one.
func addPool(out *cloudinit.Vars, claim *v1alpha1.MachineClaim, pool *v1alpha1.AddressPool) {
	out.Gateways = texts(pool.Gateway)
	if len(pool.Nameservers) > 0 {
		out.DNSServers = texts(pool.Nameservers)
	}

	addresses, err := Addresses(claim)
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
