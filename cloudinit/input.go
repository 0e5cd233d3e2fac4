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

// MaxUserData is the maximum size of the user data in bytes. An ISO could contain more, but every stage of
// cloud-init reads the whole user data.
const MaxUserData = 512 << 10

// Input is the complete input for the boot data of one machine.
type Input struct {
	// UserData, MetaData and NetworkData are the user's templates (spec.cloudInit).
	UserData, MetaData, NetworkData string
	// Vars are the variables that the templates can use.
	Vars Vars
	// Config is written to guest.ConfigPath. If it is nil, no file is written.
	Config *guest.Config
	// InstanceID is the instance-id in the meta data: the UID of the claim.
	InstanceID string
	// Hostname is the machine's name without its domain. FQDN may be empty.
	Hostname, FQDN string
	// Delivery says how the bootstrap service gets into the machine.
	Delivery Delivery
	// Network is the template's network. Nil is the same as mode dhcp.
	Network *v1alpha1.MachineNetwork
	// DNS is the DNS configuration of the template, or else that of the hypervisor cluster.
	DNS v1alpha1.MachineDNS
	// Addresses are the addresses that were allocated to the machine from the pool in Network, at most one of
	// each family.
	Addresses []netip.Prefix
}

// Delivery says how the bootstrap service gets into a machine.
type Delivery struct {
	// Method is v1alpha1.DeliveryImage (the default), DeliveryDownload or DeliveryISO. With DeliveryISO, the
	// caller has to add the program to the cloud-init ISO as BootstrapServiceFile.
	Method string
	// URL is the base URL for DeliveryDownload. The server serves the program at URL/bootstrap/ARCH.
	URL string
	// SHA256 contains the program's SHA-256 in hexadecimal for each machine architecture as `uname -m` prints
	// it, e.g. x86_64 or aarch64. DeliveryDownload and DeliveryISO require it.
	SHA256 map[string]string
	// CABundle is the CA bundle in PEM that verifies the URL's host. If it is empty, the system's CAs do.
	CABundle string
}

// BootstrapServiceFile is the name of the program on the cloud-init ISO with DeliveryISO.
const BootstrapServiceFile = "bootstrap-service"

// Output is the content of a cloud-init ISO.
type Output struct {
	UserData, MetaData []byte
	// NetworkConfig is nil if cloud-init should use its own default.
	NetworkConfig []byte
}

// Files returns the output by the file names that NoCloud expects. BuildISO accepts this map.
func (o Output) Files() map[string][]byte {
	files := map[string][]byte{FileUserData: o.UserData, FileMetaData: o.MetaData}
	if o.NetworkConfig != nil {
		files[FileNetworkConfig] = o.NetworkConfig
	}

	return files
}

// Vars are the variables of the user's templates. Document 000 defines their names.
type Vars struct {
	WorkloadMethod, BootstrapMethod, AttestationMethod string

	SPIFFEEnabled                  bool
	JoinToken, SPIFFEID, TPMDevice string

	RunnerToken, JITConfig      string
	RegistrationURL, RunnerName string
	Labels                      List
	// ExpiresAt is a time in RFC 3339.
	ExpiresAt    string
	RunnerConfig RunnerConfig

	// BootstrapServiceBinary fits into user data only if it is very small. The real program does not fit. A
	// template that uses it fails with an error that names the fix.
	BootstrapServiceBinary *Binary
	BootstrapServiceURL    string

	Hostname, FQDN string
	NetworkMode    string
	StaticIP       string
	NetmaskBits    int
	Gateway        string
	DNSServers     List
	// Addresses have prefix lengths. Addresses and Gateways contain both families.
	Addresses, Gateways  List
	Namespace, ClaimName string
	PoolName             string
}

// RunnerConfig describes the runner program. Document 000 defines the names.
type RunnerConfig struct {
	DownloadUrl, DownloadSHA256 string //nolint:staticcheck // templates use this name
	InstallPath, WorkDir        string
	ConfigScript, RunScript     string
	OS, Arch                    string
}

// List is a list of strings. A template that prints it gets a list in JSON, which is also valid YAML.
type List []string

// String returns the list as JSON, which is also valid YAML.
func (l List) String() string {
	text, err := json.Marshal([]string(l))
	if err != nil || l == nil {
		return "[]"
	}

	return string(text)
}

// MarshalJSON encodes the list. It encodes a nil list as [] and not as null.
func (l List) MarshalJSON() ([]byte, error) { return []byte(l.String()), nil }

// Binary is the content of a program. It is read only when a template encodes it.
type Binary struct {
	content io.ReaderAt
	size    int64
}

// NewBinary returns a program of size bytes. It returns nil if size is zero.
func NewBinary(content io.ReaderAt, size int64) *Binary {
	if size == 0 {
		return nil
	}

	return &Binary{content: content, size: size}
}

// String returns a placeholder, because a program cannot be part of a text without encoding.
func (*Binary) String() string { return "(program: write it with | base64)" }

// secrets returns the values that must not appear in an error.
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
