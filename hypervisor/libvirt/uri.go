// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"cmp"
	"net"
	"net/url"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Transports of a URI.
const (
	transportUnix = "unix"
	transportTLS  = "tls"
	transportSSH  = "ssh"
)

const (
	// systemSocket is the socket of a libvirtd that serves all users of its host.
	systemSocket = "/run/libvirt/libvirt-sock"
	defaultUser  = "root"
)

// endpoint is a parsed URI of a host.
type endpoint struct {
	transport string
	// address is host:port. It is empty for a Unix socket.
	address string
	// user logs in over SSH.
	user string
	// socket is the path of libvirtd's socket on the host, for a Unix socket and for SSH.
	socket string
	// driver is the URI that libvirtd opens, for example qemu:///system.
	driver string
}

// parseURI parses a URI such as qemu+tls://host/system.
func parseURI(text string) (endpoint, error) {
	newURIError := func(problem string) (endpoint, error) {
		return endpoint{}, hypervisor.Errorf(hypervisor.Rejected, "URIInvalid",
			"parse the URI %q of a host: %s: write a URI such as qemu+tls://host.example.com/system", text, problem)
	}

	u, err := url.Parse(text)
	if err != nil {
		return newURIError("it is not a URI")
	}

	driver, transport, _ := strings.Cut(u.Scheme, "+")
	if driver != "qemu" {
		return newURIError("the driver must be qemu")
	}

	if u.Path != "/system" && u.Path != "/session" {
		return newURIError("the path must be /system or /session")
	}

	out := endpoint{transport: transport, driver: driver + "://" + u.Path, socket: u.Query().Get("socket")}

	switch transport {
	case transportUnix:
		if out.socket = cmp.Or(out.socket, systemSocket); u.Host != "" {
			return newURIError("a Unix socket has no host")
		}
	case transportTLS:
		out.address = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), hypervisor.PortLibvirtTLS))
	case transportSSH:
		out.address = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), hypervisor.PortSSH))
		out.socket, out.user = cmp.Or(out.socket, systemSocket), cmp.Or(u.User.Username(), defaultUser)
	default:
		return newURIError("the transport must be tls, ssh or unix")
	}

	if transport != transportUnix && u.Hostname() == "" {
		return newURIError("the host is missing")
	}

	if _, hasPassword := u.User.Password(); hasPassword {
		return newURIError("it must not contain a password")
	}

	return out, nil
}
