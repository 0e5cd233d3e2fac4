// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	golibvirt "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Resolve finds the template on each host; see hypervisor.Provider. Machines are created only on the hosts
// that have the template.
func (p *Provider) Resolve(
	ctx context.Context, ref hypervisor.TemplateRef, shape hypervisor.Shape,
) ([]hypervisor.Template, error) {
	if err := checkShape(shape); err != nil {
		return nil, err
	}

	var (
		mu    sync.Mutex
		found = map[*host]diskTemplate{}
	)

	errs := p.onHosts(func(h *host) error {
		t, err := h.readTemplate(ctx, ref)
		if err == nil {
			err = h.checkSize(ctx, t, shape)
		}

		if err == nil {
			err = h.checkDevices(shape)
		}

		if err == nil && shape.TPM {
			err = h.checkTPM(ctx)
		}

		if err != nil {
			return err
		}

		mu.Lock()
		defer mu.Unlock()

		found[h] = t

		return nil
	})

	var out []hypervisor.Template

	for _, h := range p.hosts {
		if t, ok := found[h]; ok {
			out = append(out, hypervisor.Template{
				Name: t.name, Node: h.config.Name, Storage: t.volume.Pool, DiskBytes: t.capacity, OS: parseOSInfo(t.domain),
			})
		}
	}

	if len(out) > 0 {
		return out, nil
	}

	return nil, p.newUnresolvedError(ref, errs)
}

// newUnresolvedError returns the error for a template that no host can use. If a host does not respond, the
// error does not say that the template is missing, because that host may have it.
func (p *Provider) newUnresolvedError(ref hypervisor.TemplateRef, errs map[*host]error) error {
	down := map[*host]error{}

	for h, err := range errs {
		switch hypervisor.KindOf(err) {
		case hypervisor.Rejected:
			return worstError(p.hosts, errs)
		case hypervisor.NotFound:
		default:
			down[h] = err
		}
	}

	if len(down) > 0 {
		return newUnavailableError("find template "+ref.Name, down)
	}

	return hypervisor.Errorf(hypervisor.NotFound, "TemplateNotFound",
		"no host has the template %s: %s", ref.Name, p.explainTemplate(ref))
}

// explainTemplate returns how the hosts get a template that none of them has.
func (p *Provider) explainTemplate(ref hypervisor.TemplateRef) string {
	switch ref.Kind {
	case hypervisor.TemplateDomain:
		return "define this domain on each host that shall run machines, or correct the name"
	case hypervisor.TemplateTaggedDomain:
		return "give these tags to one domain of each host that shall run machines, or correct the tags"
	default:
		return "copy it to the storage pool of each host that shall run machines, and refresh the pool with " +
			"`virsh pool-refresh " + p.poolName() + "`, or correct the name"
	}
}

// poolName returns the name of the hosts' storage pool, and POOL if their pools have different names.
func (p *Provider) poolName() string {
	name := ""

	for _, h := range p.hosts {
		if name != "" && name != h.config.StoragePool {
			return "POOL"
		}

		name = h.config.StoragePool
	}

	return name
}

// checkShape returns an error for what no host supports.
func checkShape(shape hypervisor.Shape) error {
	switch {
	case shape.VLAN != 0:
		return hypervisor.Errorf(hypervisor.Rejected, "VLANUnsupported",
			"network.vlan is not supported on libvirt: remove it, and use a bridge of the VLAN")
	case shape.CloudInitSource == hypervisor.SourceBuiltin:
		return hypervisor.Errorf(hypervisor.Rejected, "CloudInitSourceUnsupported",
			"cloudInitSource builtin is not supported on libvirt: use nocloud")
	default:
		return nil
	}
}

// checkTPM returns an error if the host cannot emulate TPMs.
func (h *host) checkTPM(ctx context.Context) error {
	s, err := h.currentSession(ctx)
	if err != nil {
		return err
	}

	var (
		text         string
		capabilities libvirtxml.DomainCaps
	)

	err = h.call(ctx, newRead("readCapabilities"), func(rpc *golibvirt.Libvirt) error {
		var err error

		text, err = rpc.ConnectGetDomainCapabilities(
			nil, golibvirt.OptString{s.facts.arch}, nil, golibvirt.OptString{s.facts.domainType}, 0)

		return err
	})
	if err != nil {
		return err
	}

	if err := capabilities.Unmarshal(text); err != nil {
		return fmt.Errorf("decode the capabilities of host %s: %w", h.config.Name, err)
	}

	if canEmulateTPM(capabilities) {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, "TPMUnsupported",
		"host %s cannot emulate TPMs: install swtpm and swtpm-tools on it, or use attestation method join-token", h.config.Name)
}

func canEmulateTPM(capabilities libvirtxml.DomainCaps) bool {
	tpm := capabilities.Devices.TPM

	return tpm != nil && tpm.Supported == "yes" && slices.ContainsFunc(tpm.Enums, func(e libvirtxml.DomainCapsEnum) bool {
		return e.Name == "backendModel" && slices.Contains(e.Values, "emulator")
	})
}

// checkSize returns an error if a machine of the shape cannot be created from the template on the host.
func (h *host) checkSize(ctx context.Context, t diskTemplate, shape hypervisor.Shape) error {
	s, err := h.currentSession(ctx)
	if err != nil {
		return err
	}

	total := h.total(s)

	switch {
	case shape.Nested && s.facts.domainType != typeKVM:
		return hypervisor.Errorf(hypervisor.Rejected, "NestedUnsupported",
			"nested virtualization is not possible on host %s, whose machines run without KVM: enable the virtualization of its CPU, "+
				"or remove resources.nestedVirtualization", h.config.Name)
	case shape.Memory > total.Memory || int64(shape.CPU) > total.CPU:
		return hypervisor.Errorf(hypervisor.Rejected, "ResourcesExceedNode",
			"host %s may be filled with %d cores and %d MiB of memory, which is less than the machine's %d cores and %d MiB: "+
				"request less, or raise the limits of the host",
			h.config.Name, total.CPU, total.Memory>>20, shape.CPU, shape.Memory>>20)
	case shape.Disk > 0 && shape.Disk < t.capacity:
		return hypervisor.Errorf(hypervisor.Rejected, "DiskTooSmall",
			"resources.disk is %d MiB, but the disk of template %s of host %s is %d MiB: a disk cannot shrink",
			shape.Disk>>20, t.name, h.config.Name, t.capacity>>20)
	case t.domain != nil && t.domain.OS != nil && t.domain.OS.Type != nil && !strings.HasPrefix(t.domain.OS.Type.Type, "hvm"):
		return h.newTemplateError(t.name, "is not a complete virtual machine (hvm)")
	default:
		return nil
	}
}
