// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	golibvirt "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Formats of volumes.
const (
	formatQCOW2 = "qcow2"
	formatRaw   = "raw"
)

// errExists means that a volume with the name exists already.
var errExists = errors.New("the volume exists already")

// createLinked creates a volume that shares the template's content. If a volume with the name exists, an
// earlier call has created it. createLinked then verifies it, and creates it again if it is incomplete.
func (h *host) createLinked(ctx context.Context, name string, t diskTemplate, size int64) error {
	want := newLinked(name, t, size)

	if err := h.createVolume(ctx, want); !errors.Is(err, errExists) {
		return err
	}

	return h.repairLinked(ctx, want)
}

func newLinked(name string, t diskTemplate, size int64) libvirtxml.StorageVolume {
	out := newVolume(name, formatQCOW2, max(size, t.capacity))
	out.BackingStore = &libvirtxml.StorageVolumeBackingStore{
		Path: t.path, Format: &libvirtxml.StorageVolumeTargetFormat{Type: t.format},
	}

	return out
}

// repairLinked creates a linked volume again if it is incomplete.
func (h *host) repairLinked(ctx context.Context, want libvirtxml.StorageVolume) error {
	found, err := h.readVolume(ctx, h.volume(want.Name))
	if err == nil && isSameVolume(found, want) {
		return nil
	}

	if err != nil && !hypervisor.Is(err, hypervisor.NotFound) {
		return err
	}

	if err := h.deleteVolume(ctx, want.Name); err != nil {
		return err
	}

	return h.createVolume(ctx, want)
}

// isSameVolume reports whether a linked volume is what it should be.
func isSameVolume(found, want libvirtxml.StorageVolume) bool {
	return found.BackingStore != nil && found.BackingStore.Path == want.BackingStore.Path &&
		found.Capacity != nil && found.Capacity.Value == want.Capacity.Value &&
		found.Target != nil && found.Target.Format != nil && found.Target.Format.Type == want.Target.Format.Type
}

func newVolume(name, format string, size int64) libvirtxml.StorageVolume {
	return libvirtxml.StorageVolume{
		Name:     name,
		Capacity: &libvirtxml.StorageVolumeSize{Unit: "B", Value: uint64(size)}, //nolint:gosec // a size is positive
		Target:   &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: format}},
	}
}

// createVolume creates a volume. The error is errExists if the name is taken.
func (h *host) createVolume(ctx context.Context, v libvirtxml.StorageVolume) error {
	text, err := v.Marshal()
	if err != nil {
		return fmt.Errorf("encode volume %s: %w", v.Name, err)
	}

	err = h.callPool(ctx, newWrite("createVolume"), func(rpc *golibvirt.Libvirt, pool golibvirt.StoragePool) error {
		_, err := rpc.StorageVolCreateXML(pool, text, 0)

		return err
	})

	return convertExists(err)
}

// convertExists returns errExists if the error says that the volume exists, and otherwise the error. For the copy of a volume,
// libvirt reports an internal error.
func convertExists(err error) error {
	if hasCode(err, golibvirt.ErrStorageVolExist) ||
		hasCode(err, golibvirt.ErrInternalError) && strings.Contains(err.Error(), textNameInUse) {
		return errExists
	}

	return err
}

// copyVolume creates a volume with a copy of the template's content. It takes as long as the copy.
func (h *host) copyVolume(ctx context.Context, name string, t diskTemplate, size int64) error {
	v := newVolume(name, formatQCOW2, max(size, t.capacity))

	text, err := v.Marshal()
	if err != nil {
		return fmt.Errorf("encode volume %s: %w", name, err)
	}

	op := operation{name: "copyVolume", isWrite: true, timeout: cloneTimeout}

	err = h.callPool(ctx, op, func(rpc *golibvirt.Libvirt, pool golibvirt.StoragePool) error {
		_, err := rpc.StorageVolCreateXMLFrom(pool, text, t.volume, 0)
		if err == nil && size > t.capacity {
			// A copy has the size of its source, whatever the definition says.
			err = rpc.StorageVolResize(h.volume(name), uint64(size), 0) //nolint:gosec // a size is positive
		}

		return err
	})

	return convertExists(err)
}

// createISO creates the cloud-init ISO of a machine. An earlier process may have left an incomplete ISO with
// the name. In this case createISO first deletes the volumes in replaced, and wasReplaced is true.
func (h *host) createISO(
	ctx context.Context, name string, seed hypervisor.Seed, replaced []string,
) (wasReplaced bool, err error) {
	files := map[string][]byte{cloudinit.FileUserData: seed.UserData, cloudinit.FileMetaData: seed.MetaData}
	if len(seed.NetworkConfig) > 0 {
		files[cloudinit.FileNetworkConfig] = seed.NetworkConfig
	}

	maps.Copy(files, seed.Files)

	image, err := cloudinit.BuildISO(files)
	if err != nil {
		return false, fmt.Errorf("create cloud-init ISO %s: %w", name, err)
	}

	v := newVolume(name, formatRaw, int64(len(image)))

	err = h.createVolume(ctx, v)
	if wasReplaced = errors.Is(err, errExists); wasReplaced {
		if err = h.deleteVolumes(ctx, replaced...); err == nil {
			err = h.createVolume(ctx, v)
		}
	}

	if err != nil {
		return wasReplaced, err
	}

	return wasReplaced, h.call(ctx, newWrite("uploadVolume"), func(rpc *golibvirt.Libvirt) error {
		return rpc.StorageVolUpload(h.volume(name), bytes.NewReader(image), 0, uint64(len(image)), 0)
	})
}

// readVolume reads a volume. The error is of kind NotFound if it does not exist.
func (h *host) readVolume(ctx context.Context, ref golibvirt.StorageVol) (libvirtxml.StorageVolume, error) {
	var (
		text   string
		parsed libvirtxml.StorageVolume
	)

	err := h.call(ctx, newRead("readVolume"), func(rpc *golibvirt.Libvirt) error {
		var err error

		text, err = rpc.StorageVolGetXMLDesc(ref, 0)

		return err
	})
	if err != nil {
		return parsed, err
	}

	if err := parsed.Unmarshal(text); err != nil {
		return parsed, fmt.Errorf("decode volume %s of host %s: %w", ref.Name, h.config.Name, err)
	}

	return parsed, nil
}

// requestDeletion deletes a volume. The error is of kind NotFound if the volume or the pool does not exist.
func (h *host) requestDeletion(ctx context.Context, name string) error {
	return h.call(ctx, newWrite("deleteVolume"), func(rpc *golibvirt.Libvirt) error {
		return rpc.StorageVolDelete(h.volume(name), 0)
	})
}

// deleteVolume deletes a volume. It succeeds if the volume or the pool does not exist.
func (h *host) deleteVolume(ctx context.Context, name string) error {
	err := h.requestDeletion(ctx, name)
	if hypervisor.Is(err, hypervisor.NotFound) {
		return nil
	}

	return err
}

// deleteVolumes deletes volumes, one after the other.
func (h *host) deleteVolumes(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := h.deleteVolume(ctx, name); err != nil {
			return err
		}
	}

	return nil
}

// listVolumes returns the names of the volumes of the host's pool.
func (h *host) listVolumes(ctx context.Context) ([]string, error) {
	var names []string

	err := h.callPool(ctx, newRead("listVolumes"), func(rpc *golibvirt.Libvirt, pool golibvirt.StoragePool) error {
		found, _, err := rpc.StoragePoolListAllVolumes(pool, 1, 0)
		for _, v := range found {
			names = append(names, v.Name)
		}

		return err
	})

	return names, err
}
