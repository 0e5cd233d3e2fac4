// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Check connects to all hosts, and verifies their pools and networks; see hypervisor.Provider. It returns an
// error if no host can be used. Otherwise it returns a warning for each host that cannot be used.
func (p *Provider) Check(ctx context.Context) (hypervisor.Info, error) {
	info := hypervisor.Info{Product: product}

	errs := p.onHosts(func(h *host) error { return h.check(ctx) })

	var versions []string

	for _, h := range p.hosts {
		if s, err := h.currentSession(ctx); err == nil && !slices.Contains(versions, s.facts.version) {
			versions = append(versions, s.facts.version)
		}

		if err := errs[h]; err != nil {
			info.Warnings = append(info.Warnings, fmt.Sprintf("host %s cannot be used: %v", h.config.Name, err))
		}
	}

	slices.Sort(versions)
	info.Version = strings.Join(versions, ", ")

	if len(p.hosts) > 0 && len(errs) == len(p.hosts) {
		return info, worstError(p.hosts, errs)
	}

	capacity, err := p.Capacity(ctx)
	info.Nodes = capacity.Nodes

	return info, err
}

// worstError returns an error that a person must fix, if there is one, and otherwise the first host's error.
func worstError(hosts []*host, errs map[*host]error) error {
	for _, h := range hosts {
		if hypervisor.Is(errs[h], hypervisor.Rejected) {
			return errs[h]
		}
	}

	for _, h := range hosts {
		if errs[h] != nil {
			return errs[h]
		}
	}

	return nil
}

// check verifies that machines can be created on the host.
func (h *host) check(ctx context.Context) error {
	if err := h.refresh(ctx, h.provider.maxListAge()); err != nil {
		return err
	}

	if _, err := h.readStorage(ctx); err != nil {
		return err
	}

	return h.checkNetwork(ctx)
}

// checkNetwork verifies that the host's virtual network is active.
func (h *host) checkNetwork(ctx context.Context) error {
	name := h.config.Network
	if name == "" {
		return nil
	}

	var active int32

	err := h.call(ctx, newRead("readNetwork"), func(rpc *golibvirt.Libvirt) error {
		n, err := rpc.NetworkLookupByName(name)
		if err == nil {
			active, err = rpc.NetworkIsActive(n)
		}

		return err
	})

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		return hypervisor.Errorf(hypervisor.Rejected, "NetworkMissing",
			"network %s of host %s does not exist: define it with `virsh net-define FILE`, whose FILE has its definition in "+
				"XML, or correct spec.libvirt", name, h.config.Name)
	case err == nil && active == 0:
		return hypervisor.Errorf(hypervisor.Rejected, "NetworkInactive",
			"network %[1]s of host %[2]s is not active: start it with `virsh net-start %[1]s`, and with "+
				"`virsh net-autostart %[1]s` for later", name, h.config.Name)
	default:
		return err
	}
}
