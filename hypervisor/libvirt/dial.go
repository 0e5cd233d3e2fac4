// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

// verified is the byte that libvirtd sends over TLS when it has accepted the client's certificate.
const verified = 1

// dial connects to the host's libvirtd. The context limits the connection's set-up only.
func (h *host) dial(ctx context.Context) (*wire, error) {
	if h.endpoint.transport == transportUnix {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", h.endpoint.socket)
		if err != nil {
			return nil, err
		}

		return newWire(conn, conn), nil
	}

	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", h.endpoint.address)
	if err != nil {
		return nil, err
	}

	// A handshake ends with the context, because the connection is closed then.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	var secure net.Conn
	if h.endpoint.transport == transportTLS {
		secure, err = h.startTLS(ctx, conn)
	} else {
		secure, err = h.startSSH(conn)
	}

	if err != nil {
		_ = conn.Close()

		return nil, err
	}

	return newWire(secure, conn), nil
}

// startTLS starts TLS on a connection, and reads the byte with which libvirtd tells whether it accepts the client
// certificate.
func (h *host) startTLS(ctx context.Context, conn net.Conn) (net.Conn, error) {
	config := h.provider.config.TLS.Clone()
	config.ServerName, _, _ = net.SplitHostPort(h.endpoint.address)

	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}

	var reply [1]byte

	_, err := secure.Read(reply[:])
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}

	if err != nil || reply[0] != verified {
		return nil, &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "CertificateRefused",
			Message: fmt.Sprintf("connect to host %s: libvirtd refuses the client certificate of spec.credentials: "+
				"use a certificate of its certificate authority, and allow its name in tls_allowed_dn_list", h.config.Name),
			Err: err,
		}
	}

	return secure, nil
}

// startSSH logs in and opens libvirtd's socket on the host.
func (h *host) startSSH(conn net.Conn) (net.Conn, error) {
	key := h.provider.config.SSHPrivateKey
	if err := bounds.CheckPrivateKey(key); err != nil {
		return nil, h.newSSHKeyError("it is " + err.Error())
	}

	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		// The library's error could contain the private key.
		return nil, h.newSSHKeyError("it must be PEM without a passphrase")
	}

	client, channels, requests, err := ssh.NewClientConn(conn, h.endpoint.address, &ssh.ClientConfig{
		User: h.endpoint.user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: h.checkHostKey,
		// In a fixed order, so that a host with several keys always presents the same key.
		HostKeyAlgorithms: []string{
			ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
			ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
		},
	})
	if err != nil {
		return nil, err
	}

	stream, err := ssh.NewClient(client, channels, requests).Dial("unix", h.endpoint.socket)
	if err != nil {
		return nil, &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "SocketRefused",
			Message: fmt.Sprintf("connect to host %s: user %s cannot open %s: add the user to the host's group libvirt, "+
				"and allow AllowStreamLocalForwarding in its sshd_config", h.config.Name, h.endpoint.user, h.endpoint.socket),
			Err: err,
		}
	}

	return stream, nil
}

func (h *host) newSSHKeyError(problem string) error {
	return hypervisor.Errorf(hypervisor.Rejected, "SSHKeyInvalid",
		"connect to host %s: the private key of spec.credentials.sshPrivateKey cannot be used: %s", h.config.Name, problem)
}

func (h *host) checkHostKey(_ string, _ net.Addr, key ssh.PublicKey) error {
	got, want := ssh.FingerprintSHA256(key), h.config.SSHHostKey
	if subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1 {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, "HostKeyChanged",
		"connect to host %s: it presents the SSH key %s, but spec.libvirt.hosts says %q: if the host was reinstalled, "+
			"correct sshHostKey; nothing was sent to the host", h.config.Name, got, want)
}

// Sizes of a message of libvirt's protocol: its length, its header, and the most that libvirt sends
// (VIR_NET_MESSAGE_MAX).
const (
	lengthBytes = 4
	minMessage  = 28
	maxMessage  = 32<<20 + lengthBytes
)

var errMessageSize = errors.New("the host sends a message of an invalid length")

// wire is a connection to libvirtd. It checks the length of each message, because the library allocates
// as much memory as a message says.
type wire struct {
	net.Conn
	// base is the connection to the network. Closing it ends calls that wait in Conn.
	base net.Conn

	closeOnce sync.Once
	closed    chan struct{}

	// length holds the bytes of the next message's length, and rest the bytes of the message to come.
	length []byte
	rest   int
}

func newWire(conn, base net.Conn) *wire {
	return &wire{Conn: conn, base: base, closed: make(chan struct{})}
}

// Read reads from the connection.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err == nil {
		err = w.checkMessages(p[:n])
	}

	if err != nil {
		_ = w.Close()

		// Bytes before an invalid length are dropped, so that the library does not see the length.
		return 0, err
	}

	return n, nil
}

// checkMessages follows the messages through the bytes that were read.
func (w *wire) checkMessages(p []byte) error {
	for len(p) > 0 {
		if w.rest > 0 {
			n := min(w.rest, len(p))
			w.rest, p = w.rest-n, p[n:]

			continue
		}

		n := min(lengthBytes-len(w.length), len(p))
		w.length, p = append(w.length, p[:n]...), p[n:]

		if len(w.length) < lengthBytes {
			return nil
		}

		size := binary.BigEndian.Uint32(w.length)
		if size < minMessage || size > maxMessage {
			return errMessageSize
		}

		w.length, w.rest = w.length[:0], int(size)-lengthBytes
	}

	return nil
}

// Close closes the connection. It does not wait for the other side.
func (w *wire) Close() error {
	var err error

	w.closeOnce.Do(func() {
		err = w.base.Close()
		close(w.closed)
	})

	return err
}
