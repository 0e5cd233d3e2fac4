// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"encoding/json"
	"io"
	"net/netip"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// DefaultMaxUserData is the largest user data in bytes where Input says nothing. An ISO
// could carry more; but user data is read as a whole by every stage of cloud-init.
const DefaultMaxUserData = 512 << 10

// Input is all that one machine's boot data is made from.
type Input struct {
	// UserData, MetaData and NetworkData are the user's templates (spec.cloudInit).
	UserData, MetaData, NetworkData string
	// Vars are what the templates may use.
	Vars Vars
	// Config is written to guest.ConfigPath. Nil writes nothing.
	Config *guest.Config
	// InstanceID becomes meta data's instance-id: the claim's uid.
	InstanceID string
	// Hostname is the machine's name without its domain; FQDN may be empty.
	Hostname, FQDN string
	// Delivery says how the bootstrap service reaches the machine.
	Delivery Delivery
	// Network is the template's network; nil is the same as mode dhcp.
	Network *v1alpha1.MachineNetwork
	// DNS is what holds for the machine: the template's, else the cluster's.
	DNS v1alpha1.MachineDNS
	// Addresses are those that the machine was given of the pool in Network, one of each
	// family at most.
	Addresses []netip.Prefix
	// MAC of the first network device, if it is known. Else the device is matched by
	// its kernel name, e*.
	MAC string
	// MaxUserData in bytes; zero means DefaultMaxUserData.
	MaxUserData int
}

// Delivery says how the bootstrap service reaches a machine.
type Delivery struct {
	// Method is one of v1alpha1.DeliveryImage (also when empty), DeliveryDownload and
	// DeliveryISO. With DeliveryISO the caller puts the program on the cloud-init ISO as
	// BootstrapServiceFile.
	Method string
	// URL that serves the program as URL/bootstrap/ARCH; for DeliveryDownload.
	URL string
	// SHA256 in hexadecimal by machine architecture as `uname -m` says it, e.g. x86_64,
	// aarch64; for DeliveryDownload and DeliveryISO.
	SHA256 map[string]string
	// CABundle in PEM verifies the URL's host; empty means the system's.
	CABundle string
}

// BootstrapServiceFile is the program's name on the cloud-init ISO with DeliveryISO.
const BootstrapServiceFile = "bootstrap-service"

// Output is what a cloud-init ISO holds.
type Output struct {
	UserData, MetaData []byte
	// NetworkConfig is nil where cloud-init is to use its own default.
	NetworkConfig []byte
}

// Files gives the output by the names that NoCloud looks for, as ISO takes them.
func (o Output) Files() map[string][]byte {
	files := map[string][]byte{FileUserData: o.UserData, FileMetaData: o.MetaData}
	if o.NetworkConfig != nil {
		files[FileNetworkConfig] = o.NetworkConfig
	}

	return files
}

// Vars are the variables of the user's templates, by the names of document 000.
type Vars struct {
	WorkloadMethod, BootstrapMethod, AttestationMethod string

	SPIFFEEnabled                  bool
	JoinToken, SPIFFEID, TPMDevice string

	RunnerToken, JITConfig      string
	RegistrationURL, RunnerName string
	Labels                      List
	// ExpiresAt in RFC 3339.
	ExpiresAt    string
	RunnerConfig RunnerConfig

	// BootstrapServiceBinary fits into user data only if it is very small: the real
	// one does not, and using it is an error that says what to do.
	BootstrapServiceBinary *Binary
	BootstrapServiceURL    string

	Hostname, FQDN string
	NetworkMode    string
	StaticIP       string
	NetmaskBits    int
	Gateway        string
	DNSServers     List
	// Addresses with their prefix lengths, and Gateways, of both families.
	Addresses, Gateways  List
	Namespace, ClaimName string
	PoolName             string
}

// RunnerConfig is the runner program, by the names of document 000.
type RunnerConfig struct {
	DownloadUrl, DownloadSHA256 string //nolint:staticcheck // the name that templates use
	InstallPath, WorkDir        string
	ConfigScript, RunScript     string
	OS, Arch                    string
}

// List is a list of texts. Written out plainly it is a list of JSON and YAML.
type List []string

// String gives the list as JSON, which is YAML as well.
func (l List) String() string {
	text, err := json.Marshal([]string(l))
	if err != nil || l == nil {
		return "[]"
	}

	return string(text)
}

// MarshalJSON writes the list; a missing one is empty rather than null.
func (l List) MarshalJSON() ([]byte, error) { return []byte(l.String()), nil }

// Binary is the content of a program, which is read only where it is written out.
type Binary struct {
	content io.ReaderAt
	size    int64
}

// NewBinary is a program of size bytes; nil if it has none.
func NewBinary(content io.ReaderAt, size int64) *Binary {
	if size == 0 {
		return nil
	}

	return &Binary{content: content, size: size}
}

// String says what it is: a program cannot stand in a text as it is.
func (*Binary) String() string { return "(program: write it with | base64)" }

// secrets are the values that may not appear in an error.
func (in *Input) secrets() []string {
	v := &in.Vars
	all := []string{v.JoinToken, v.RunnerToken, v.JITConfig}

	if c := in.Config; c != nil {
		all = append(all, c.JITConfig, c.RunnerToken)
		if c.Report != nil {
			all = append(all, c.Report.Token)
		}

		if c.Callback != nil {
			all = append(all, c.Callback.Code)
		}

		if c.SPIFFE != nil {
			all = append(all, c.SPIFFE.JoinToken)

			if c.SPIFFE.DevID != nil {
				all = append(all, c.SPIFFE.DevID.Code)
			}
		}
	}

	return all
}
