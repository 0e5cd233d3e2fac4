// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// templateMaxAge is the age until which a machine is created from a template as it was read before.
const templateMaxAge = time.Minute

// diskTemplate is a template on one host.
type diskTemplate struct {
	name string
	// volume is the disk, and path its path on the host.
	volume       golibvirt.StorageVol
	path, format string
	capacity     int64
	// domain is the definition that machines are made from. It is nil for a template that is only a volume.
	domain *libvirtxml.Domain
}

type cachedTemplate struct {
	template diskTemplate
	readAt   time.Time
}

// template returns the template, as it was read at most a minute ago.
func (h *host) template(ctx context.Context, ref hypervisor.TemplateRef) (diskTemplate, error) {
	h.mu.Lock()
	cached, ok := h.templates[ref]
	h.mu.Unlock()

	if ok && h.provider.clock.Since(cached.readAt) <= templateMaxAge {
		return cached.template, nil
	}

	return h.readTemplate(ctx, ref)
}

// readTemplate finds the template on the host and checks it. The error is of kind NotFound if the host does
// not have it.
func (h *host) readTemplate(ctx context.Context, ref hypervisor.TemplateRef) (diskTemplate, error) {
	var (
		t   diskTemplate
		err error
	)

	switch ref.Kind {
	case hypervisor.TemplateStorageVolume, "":
		t, err = h.readTemplateVolume(ctx, ref.Name, h.volume(ref.Name))
	case hypervisor.TemplateDomain:
		t, err = h.readTemplateDomain(ctx, ref.Name)
	case hypervisor.TemplateTaggedDomain:
		var name string
		if name, err = h.findTagged(ctx, strings.Split(ref.Name, ",")); err == nil {
			t, err = h.readTemplateDomain(ctx, name)
		}
	default:
		err = hypervisor.Errorf(hypervisor.Rejected, "TemplateInvalid", "libvirt has no templates of kind %q", ref.Kind)
	}

	if err != nil {
		return t, err
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	now := h.provider.clock.Now()
	maps.DeleteFunc(h.templates, func(_ hypervisor.TemplateRef, old cachedTemplate) bool {
		return now.Sub(old.readAt) > templateMaxAge
	})
	h.templates[ref] = cachedTemplate{template: t, readAt: now}

	return t, nil
}

func (h *host) readTemplateVolume(ctx context.Context, name string, ref golibvirt.StorageVol) (diskTemplate, error) {
	v, err := h.readVolume(ctx, ref)
	if err != nil {
		return diskTemplate{}, err
	}

	if v.Target == nil || v.Target.Path == "" || v.Target.Format == nil || v.Capacity == nil || v.Capacity.Value == 0 {
		return diskTemplate{}, h.newTemplateError(name, "is not a disk")
	}

	t := diskTemplate{
		name: name, volume: ref, path: v.Target.Path, format: v.Target.Format.Type,
		capacity: int64(v.Capacity.Value), //nolint:gosec // the size of a disk
	}
	if t.format != formatQCOW2 && t.format != formatRaw {
		return t, h.newTemplateError(name, "has the format "+t.format+": convert it to qcow2 with qemu-img convert")
	}

	return t, nil
}

func (h *host) newTemplateError(name, problem string) error {
	return hypervisor.Errorf(hypervisor.Rejected, "TemplateInvalid", "template %s of host %s %s", name, h.config.Name, problem)
}

// readTemplateDomain reads a defined domain that does not run and has exactly one disk.
func (h *host) readTemplateDomain(ctx context.Context, name string) (diskTemplate, error) {
	var (
		text   string
		active int32
		volume golibvirt.StorageVol
		parsed libvirtxml.Domain
	)

	err := h.call(ctx, newRead("readDomain"), func(rpc *golibvirt.Libvirt) error {
		d, err := rpc.DomainLookupByName(name)
		if err == nil {
			active, err = rpc.DomainIsActive(d)
		}

		if err == nil {
			text, err = rpc.DomainGetXMLDesc(d, golibvirt.DomainXMLInactive)
		}

		return err
	})
	if err != nil {
		return diskTemplate{}, err
	}

	if err := parsed.Unmarshal(text); err != nil {
		return diskTemplate{}, fmt.Errorf("decode domain %s of host %s: %w", name, h.config.Name, err)
	}

	if active != 0 {
		return diskTemplate{}, h.newTemplateError(name, "is running: shut it down, because its disk must not change")
	}

	disk := templateDisk(&parsed)
	if disk == nil {
		return diskTemplate{}, h.newTemplateError(name, "must have exactly one disk, and its source must be a file")
	}

	err = h.call(ctx, newRead("findVolume"), func(rpc *golibvirt.Libvirt) error {
		var err error

		volume, err = rpc.StorageVolLookupByPath(disk.Source.File.File)

		return err
	})
	if hypervisor.Is(err, hypervisor.NotFound) {
		return diskTemplate{}, h.newTemplateError(name, "has its disk "+disk.Source.File.File+" in no storage pool: "+
			h.explainVolume(ctx, disk.Source.File.File))
	}

	if err != nil {
		return diskTemplate{}, err
	}

	t, err := h.readTemplateVolume(ctx, name, volume)
	t.domain = &parsed

	return t, err
}

// explainVolume returns how libvirt gets to know a file as a volume.
func (h *host) explainVolume(ctx context.Context, path string) string {
	dir := filepath.Dir(path)

	if s, err := h.knownStorage(ctx); err == nil && filepath.Clean(s.dir) == dir {
		return "refresh the pool with `virsh pool-refresh " + h.config.StoragePool + "`"
	}

	return "define a pool for its directory with `virsh pool-define-as templates dir --target '" + dir +
		"' && virsh pool-start templates && virsh pool-autostart templates`, or refresh the pool that it has"
}

// templateDisk returns the only disk of a domain, and nil if there is no only disk that is a file.
func templateDisk(d *libvirtxml.Domain) *libvirtxml.DomainDisk {
	var disks []*libvirtxml.DomainDisk

	if d.Devices != nil {
		for i := range d.Devices.Disks {
			if disk := &d.Devices.Disks[i]; isHardDisk(disk) {
				disks = append(disks, disk)
			}
		}
	}

	if len(disks) != 1 || disks[0].Source == nil || disks[0].Source.File == nil {
		return nil
	}

	return disks[0]
}

func isHardDisk(disk *libvirtxml.DomainDisk) bool { return disk.Device == "disk" || disk.Device == "" }

// osInfoPattern matches the operating system in the metadata that libosinfo's tools write, for example
// http://microsoft.com/win/11 (https://libosinfo.org).
var osInfoPattern = regexp.MustCompile(`\bos id=["']https?://([^/"']+)/`)

// parseOSInfo returns the operating system in the metadata of a domain, and "" if it names none.
func parseOSInfo(d *libvirtxml.Domain) string {
	if d == nil || d.Metadata == nil {
		return ""
	}

	match := osInfoPattern.FindStringSubmatch(d.Metadata.XML)

	switch {
	case match == nil:
		return ""
	case match[1] == "microsoft.com":
		return hypervisor.OSWindows
	case slices.Contains(otherSystems(), match[1]):
		return ""
	default:
		return hypervisor.OSLinux
	}
}

// otherSystems returns the vendors in libosinfo whose systems are neither Windows nor Linux.
func otherSystems() []string {
	return []string{
		"apple.com", "freebsd.org", "netbsd.org", "openbsd.org", "dragonflybsd.org", "illumos.org",
		"haiku-os.org", "reactos.org",
	}
}

// templateTags is the element in the metadata of a template: <template><tag>ubuntu</tag></template>.
type templateTags struct {
	Tags []string `xml:"tag"`
}

// findTagged returns the name of the only domain that has all tags.
func (h *host) findTagged(ctx context.Context, tags []string) (string, error) {
	if err := h.refresh(ctx, h.provider.maxListAge()); err != nil {
		return "", err
	}

	var found []string

	for _, d := range h.domains() {
		if d.isOurs {
			continue
		}

		has, err := h.readTags(ctx, d)
		if err != nil {
			return "", err
		}

		isMatch := !slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(has, tag) })
		if isMatch {
			found = append(found, d.name)
		}
	}

	slices.Sort(found)

	switch len(found) {
	case 0:
		return "", hypervisor.Errorf(hypervisor.NotFound, "TemplateNotFound",
			"no domain of host %s has the tags %s", h.config.Name, strings.Join(tags, ", "))
	case 1:
		return found[0], nil
	default:
		return "", hypervisor.Errorf(hypervisor.Rejected, "TemplateAmbiguous",
			"the domains %s of host %s have the tags %s: give a tag to only one of them",
			strings.Join(found, ", "), h.config.Name, strings.Join(tags, ", "))
	}
}

// readTags reads the tags of a template. It returns none for a domain without tags.
func (h *host) readTags(ctx context.Context, d domain) ([]string, error) {
	var element string

	err := h.call(ctx, newRead("readMetadata"), func(rpc *golibvirt.Libvirt) error {
		var err error

		element, err = rpc.DomainGetMetadata(golibvirt.Domain{Name: d.name, UUID: d.uuid, ID: -1},
			int32(golibvirt.DomainMetadataElement), golibvirt.OptString{MetadataURI}, golibvirt.DomainAffectCurrent)

		return err
	})
	if hypervisor.Is(err, hypervisor.NotFound) || hasCode(err, golibvirt.ErrNoDomainMetadata) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	var parsed templateTags
	if err := xml.Unmarshal([]byte(element), &parsed); err != nil {
		return nil, nil //nolint:nilerr // it is an element of another kind
	}

	return parsed.Tags, nil
}
