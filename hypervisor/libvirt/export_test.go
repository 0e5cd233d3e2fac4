// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"net"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// ParseURI parses a URI, and returns its transport, address and driver.
func ParseURI(text string) (transport, address, driver string, err error) {
	e, err := parseURI(text)

	return e.transport, e.address, e.driver, err
}

// NewWire returns a connection that checks the length of each message.
func NewWire(conn net.Conn) net.Conn { return newWire(conn, conn) }

// MachineIDs returns the UUID and the MAC address of a machine.
func MachineIDs(operator, cluster string, id int, claimUID string) (uuid [16]byte, mac string) {
	i := identity{hypervisor.Identity{OperatorUID: operator, Cluster: cluster}}

	return i.machineUUID(id, claimUID), i.machineMAC(id)
}

// MachineUUID returns the UUID of a machine of the operator with the hash.
func MachineUUID(hash string, id int, claimUID string) golibvirt.UUID {
	return newMachineUUID(hash, id, claimUID)
}

// MaxListAge returns the age until which the provider uses a list of domains.
func (p *Provider) MaxListAge() time.Duration { return p.maxListAge() }

// SelectLease returns the address of the machine's interface.
func SelectLease(found []golibvirt.DomainInterface, mac string) string {
	return selectLease(found, mac)
}
