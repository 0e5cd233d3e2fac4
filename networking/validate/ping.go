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

// errPingNotPermitted means that the operator has no permission to send ICMP.
var errPingNotPermitted = errors.New("the operator may not send ICMP: allow its group (net.ipv4.ping_group_range), " +
	"give it CAP_NET_RAW, or set network.validation.pingTest to false")

const (
	// echoInterval is the time to wait for a reply before the next request is sent.
	echoInterval = time.Second
	// maxPacketSize is the maximum number of bytes that are read of one packet.
	maxPacketSize = 1500
	// nonceSize is the size of the nonce that a reply must contain.
	nonceSize = 16

	protocolICMP   = 1
	protocolICMPv6 = 58
)

// family has the ICMP parameters of one IP version.
type family struct {
	unprivileged, raw, anyAddress string
	protocol                      int
	request, reply                icmp.Type
}

func familyOf(addr netip.Addr) family {
	if addr.Is4() {
		return family{"udp4", "ip4:icmp", "0.0.0.0", protocolICMP, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply}
	}

	return family{"udp6", "ip6:ipv6-icmp", "::", protocolICMPv6, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply}
}

// ping sends ICMP echo requests until the host replies or the context ends.
func ping(ctx context.Context, addr netip.Addr) error {
	addr = addr.Unmap()
	kind := familyOf(addr)

	conn, to, err := listen(kind, addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()

	// Close the connection when the context ends, so a blocked read returns.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	nonce := make([]byte, nonceSize)
	if _, err := rand.Read(nonce); err != nil {
		return fmt.Errorf("ping %s: %w", addr, err)
	}

	for seq := 1; ; seq++ {
		isReplied, err := sendEcho(conn, to, kind, nonce, seq)

		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("ping %s: no reply", addr)
		case err != nil:
			return fmt.Errorf("ping %s: %w", addr, err)
		case isReplied:
			return nil
		}
	}
}

// listen opens an unprivileged ICMP socket, or a raw socket if that fails.
func listen(kind family, addr netip.Addr) (*icmp.PacketConn, net.Addr, error) {
	conn, err := icmp.ListenPacket(kind.unprivileged, kind.anyAddress)
	if err == nil {
		return conn, &net.UDPAddr{IP: addr.AsSlice(), Zone: addr.Zone()}, nil
	}

	conn, err = icmp.ListenPacket(kind.raw, kind.anyAddress)

	switch {
	case err == nil:
		return conn, &net.IPAddr{IP: addr.AsSlice(), Zone: addr.Zone()}, nil
	case errors.Is(err, os.ErrPermission):
		return nil, nil, errPingNotPermitted
	default:
		return nil, nil, fmt.Errorf("open ICMP socket: %w", err)
	}
}

// sendEcho sends one request, and waits up to echoInterval for the reply to this or an earlier request. It
// returns whether a reply arrived.
func sendEcho(conn *icmp.PacketConn, to net.Addr, kind family, nonce []byte, seq int) (isReplied bool, err error) {
	message := icmp.Message{Type: kind.request, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: seq & 0xffff, Data: nonce}}

	raw, err := message.Marshal(nil)
	if err != nil {
		return false, fmt.Errorf("encode ICMP echo: %w", err)
	}

	if _, err := conn.WriteTo(raw, to); err != nil {
		return false, fmt.Errorf("send ICMP echo: %w", err)
	}

	if err := conn.SetReadDeadline(time.Now().Add(echoInterval)); err != nil {
		return false, fmt.Errorf("wait for ICMP reply: %w", err)
	}

	buffer := make([]byte, maxPacketSize)

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

// isReply returns whether a packet is a reply to one of our requests. A raw socket also receives the
// replies to requests of other processes.
func isReply(packet []byte, kind family, nonce []byte) bool {
	message, err := icmp.ParseMessage(kind.protocol, packet)
	if err != nil || message.Type != kind.reply {
		return false
	}

	body, ok := message.Body.(*icmp.Echo)

	return ok && bytes.Equal(body.Data, nonce)
}
