// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// errPingNotPermitted says that the operator may not send ICMP at all.
var errPingNotPermitted = errors.New("the operator may not send ICMP: let its group (net.ipv4.ping_group_range), " +
	"give it CAP_NET_RAW, or set network.validation.pingTest to false")

const (
	// echoAgain is after how long without a reply another request is sent.
	echoAgain = time.Second
	// maxEcho is what is read of one packet.
	maxEcho = 1500
	// nonceSize of what a reply has to bring back.
	nonceSize = 16

	protocolICMP   = 1
	protocolICMPv6 = 58
)

// family is ICMP of one version of IP.
type family struct {
	unprivileged, raw, any string
	protocol               int
	request, reply         icmp.Type
}

func familyOf(addr netip.Addr) family {
	if addr.Is4() {
		return family{"udp4", "ip4:icmp", "0.0.0.0", protocolICMP, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply}
	}

	return family{"udp6", "ip6:ipv6-icmp", "::", protocolICMPv6, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply}
}

// ping sends ICMP echoes until one comes back or the context ends.
func ping(ctx context.Context, addr netip.Addr) error {
	addr = addr.Unmap()
	kind := familyOf(addr)

	conn, to, err := listen(kind, addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()

	// Ends a read when the context ends early.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	nonce := make([]byte, nonceSize)
	if _, err := rand.Read(nonce); err != nil {
		return fmt.Errorf("ping %s: %w", addr, err)
	}

	for seq := 1; ; seq++ {
		replied, err := echo(conn, to, kind, nonce, seq)

		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("ping %s: no reply", addr)
		case err != nil:
			return fmt.Errorf("ping %s: %w", addr, err)
		case replied:
			return nil
		}
	}
}

// listen opens the socket that needs no privilege, or else the one that needs it.
func listen(kind family, addr netip.Addr) (*icmp.PacketConn, net.Addr, error) {
	conn, err := icmp.ListenPacket(kind.unprivileged, kind.any)
	if err == nil {
		return conn, &net.UDPAddr{IP: addr.AsSlice(), Zone: addr.Zone()}, nil
	}

	conn, err = icmp.ListenPacket(kind.raw, kind.any)

	switch {
	case err == nil:
		return conn, &net.IPAddr{IP: addr.AsSlice(), Zone: addr.Zone()}, nil
	case errors.Is(err, os.ErrPermission):
		return nil, nil, errPingNotPermitted
	default:
		return nil, nil, fmt.Errorf("open ICMP socket: %w", err)
	}
}

// echo sends one request and waits a while for the reply to any of them.
func echo(conn *icmp.PacketConn, to net.Addr, kind family, nonce []byte, seq int) (bool, error) {
	message := icmp.Message{Type: kind.request, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: seq & 0xffff, Data: nonce}}

	raw, err := message.Marshal(nil)
	if err != nil {
		return false, fmt.Errorf("write ICMP echo: %w", err)
	}

	if _, err := conn.WriteTo(raw, to); err != nil {
		return false, fmt.Errorf("send ICMP echo: %w", err)
	}

	if err := conn.SetReadDeadline(time.Now().Add(echoAgain)); err != nil {
		return false, fmt.Errorf("wait for ICMP reply: %w", err)
	}

	buffer := make([]byte, maxEcho)

	for {
		n, _, err := conn.ReadFrom(buffer)

		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return false, nil
		}

		if err != nil {
			return false, fmt.Errorf("wait for ICMP reply: %w", err)
		}

		if isReply(buffer[:n], kind, nonce) {
			return true, nil
		}
	}
}

// isReply says whether a packet is the reply to our requests: a raw socket gets everyone's.
func isReply(packet []byte, kind family, nonce []byte) bool {
	message, err := icmp.ParseMessage(kind.protocol, packet)
	if err != nil || message.Type != kind.reply {
		return false
	}

	body, ok := message.Body.(*icmp.Echo)

	return ok && bytes.Equal(body.Data, nonce)
}
