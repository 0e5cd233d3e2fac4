// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// Beginnings of the URIs of libvirt hosts.
const (
	schemeLibvirt = "qemu+"
	schemeTLS     = "qemu+tls:"
	schemeSSH     = "qemu+ssh:"
)

// isLibvirt reports whether the hypervisor is a libvirt host.
func (a *answers) isLibvirt() bool { return strings.HasPrefix(a.Endpoint, schemeLibvirt) }

// isTLS reports whether the operator connects to the libvirt host over TLS.
func (a *answers) isTLS() bool { return strings.HasPrefix(a.Endpoint, schemeTLS) }

// isSSH reports whether the operator connects to the libvirt host over SSH.
func (a *answers) isSSH() bool { return strings.HasPrefix(a.Endpoint, schemeSSH) }

// validateLibvirt checks that the flags for the connection are complete.
func (o *options) validateLibvirt() error {
	switch {
	case o.isTLS() && (o.ClientCert == "" || o.ClientKey == "" || len(o.CABundle) == 0):
		return cli.Usagef("%s: a connection over TLS needs --client-cert-file, --client-key-file and --ca-file", o.Endpoint)
	case o.isSSH() && (o.SSHKey == "" || o.SSHHostKey == ""):
		return cli.Usagef("%s: a connection over SSH needs --ssh-key-file and --ssh-host-key", o.Endpoint)
	default:
		return nil
	}
}
