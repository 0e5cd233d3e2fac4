// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	// firstAddressDelay is the delay between the first sight of a running machine and the first question for its address,
	// so that a short job costs none. Each interval is as long as the machine has already run, up to maxAddressInterval.
	firstAddressDelay  = 20 * time.Second
	maxAddressInterval = 10 * time.Minute
)

// address is what is known about the address of a machine.
type address struct {
	ip            string
	seenAt, dueAt time.Time
}

// findAddress returns the address of a machine, and "" if it is not known.
func (h *host) findAddress(uuid golibvirt.UUID) string {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.addresses[uuid].ip
}

// listDueForAddress returns the running machines that have no address, and must be asked for it now. It forgets deleted machines.
func (h *host) listDueForAddress() []domain {
	now := h.provider.clock.Now()

	h.mu.Lock()
	defer h.mu.Unlock()

	known := h.addresses
	h.addresses = make(map[golibvirt.UUID]address, len(known))

	var due []domain

	for uuid, d := range h.inventory.domains {
		if !d.isOurs || !d.wasStarted {
			continue
		}

		a, isKnown := known[uuid]
		if !isKnown {
			a = address{seenAt: now, dueAt: now.Add(firstAddressDelay)}
		}

		if a.ip == "" && d.isActive && !now.Before(a.dueAt) {
			a.dueAt = now.Add(min(now.Sub(a.seenAt), maxAddressInterval))

			due = append(due, d)
		}

		h.addresses[uuid] = a
	}

	return due
}

// askAddresses asks for the addresses of machines in the background, one after the other. It does not wait, because a guest can
// take any time to respond. If the previous call has not finished, askAddresses does nothing.
func (h *host) askAddresses(ctx context.Context, s *session) {
	due := h.listDueForAddress()
	if len(due) == 0 || !h.isReadingAddresses.CompareAndSwap(false, true) {
		return
	}

	h.provider.goroutines.Go(func() {
		defer h.isReadingAddresses.Store(false)

		for _, d := range due {
			ip := h.askAddress(ctx, s, d)
			if ip == "" {
				continue
			}

			h.mu.Lock()
			a := h.addresses[d.uuid]
			a.ip = ip
			h.addresses[d.uuid] = a
			h.mu.Unlock()

			h.provider.options.Wake(d.record.Owner())
		}
	})
}

// askAddress asks the DHCP server of the host's network, and then the guest agent. It returns no error, because nothing
// waits for an address, and many machines have neither.
func (h *host) askAddress(ctx context.Context, s *session, d domain) string {
	mac := h.provider.identity.machineMAC(d.record.ID)

	if h.config.Network != "" {
		if ip := h.readLease(ctx, s, d, mac); ip != "" {
			return ip
		}
	}

	var response struct {
		Return []hypervisor.GuestInterface `json:"return"`
	}

	err := h.askAgent(ctx, d, newRead("readAddress"), agentCommand{Execute: "guest-network-get-interfaces"}, &response)
	if err != nil {
		return ""
	}

	return hypervisor.SelectAddress(response.Return, mac)
}

// readLease returns the address that the DHCP server of libvirt has given the machine.
func (h *host) readLease(ctx context.Context, s *session, d domain, mac string) string {
	var found []golibvirt.DomainInterface

	err := h.callSession(ctx, s, newRead("readLease"), func(rpc *golibvirt.Libvirt) error {
		var err error

		found, err = rpc.DomainInterfaceAddresses(golibvirt.Domain{Name: d.name, UUID: d.uuid, ID: -1},
			uint32(golibvirt.DomainInterfaceAddressesSrcLease), 0)

		return err
	})
	if err != nil {
		return ""
	}

	return selectLease(found, mac)
}

// selectLease returns the address of the machine's interface.
func selectLease(found []golibvirt.DomainInterface, mac string) string {
	var interfaces []hypervisor.GuestInterface

	for _, nic := range found {
		out := hypervisor.GuestInterface{Name: nic.Name}
		if len(nic.Hwaddr) > 0 {
			out.MAC = nic.Hwaddr[0]
		}

		for _, a := range nic.Addrs {
			out.Addresses = append(out.Addresses, hypervisor.GuestAddress{IP: a.Addr})
		}

		interfaces = append(interfaces, out)
	}

	return hypervisor.SelectAddress(interfaces, mac)
}
