// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"fmt"
	"slices"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// percent is the number of parts in a whole.
const percent = 100

// What an administrator does about a pool that cannot be used.
const (
	startPool  = "start it with `virsh pool-start %[1]s`, and with `virsh pool-autostart %[1]s` for later"
	createPool = "create it with `virsh pool-define-as %[1]s dir --target DIRECTORY && virsh pool-build %[1]s && " +
		"virsh pool-start %[1]s && virsh pool-autostart %[1]s`"
)

// storage is a host's storage pool.
type storage struct {
	// ref is the reference to the pool, which libvirt finds by its UUID.
	ref golibvirt.StoragePool
	// dir is the directory of the volumes.
	dir string
	// capacity and available are in bytes.
	capacity, available int64
	readAt              time.Time
}

// isFull reports whether no machine may be placed on the host because of its pool.
func (s storage) isFull(config hypervisor.Host) bool {
	return config.MaxStoragePercent > 0 && (s.capacity-s.available)*percent >= s.capacity*int64(config.MaxStoragePercent)
}

// readStorage reads the host's pool. An error of kind Rejected says why volumes cannot be created there.
func (h *host) readStorage(ctx context.Context) (storage, error) {
	var (
		text   string
		ref    golibvirt.StoragePool
		active int32
	)

	err := h.call(ctx, newRead("readPool"), func(rpc *golibvirt.Libvirt) error {
		var err error
		if ref, err = rpc.StoragePoolLookupByName(h.config.StoragePool); err == nil {
			text, err = rpc.StoragePoolGetXMLDesc(ref, 0)
		}

		if err == nil {
			active, err = rpc.StoragePoolIsActive(ref) // a pool that was stopped keeps its capacity
		}

		return err
	})
	if hypervisor.Is(err, hypervisor.NotFound) {
		return storage{}, h.newPoolMissingError()
	}

	if err != nil {
		return storage{}, err
	}

	var pool libvirtxml.StoragePool
	if err := pool.Unmarshal(text); err != nil {
		return storage{}, fmt.Errorf("decode storage pool of host %s: %w", h.config.Name, err)
	}

	switch {
	case !slices.Contains([]string{"dir", "fs", "netfs"}, pool.Type):
		return storage{}, h.newPoolError("has the type " + pool.Type + ": use a pool of type dir, fs or netfs, whose volumes are files")
	case active == 0 || pool.Target == nil || pool.Target.Path == "" || pool.Capacity == nil || pool.Capacity.Value == 0:
		return storage{}, h.newPoolError(fmt.Sprintf("is not active: "+startPool, h.config.StoragePool))
	}

	out := storage{
		ref: ref, dir: pool.Target.Path, readAt: h.provider.clock.Now(),
		capacity: int64(pool.Capacity.Value), //nolint:gosec // the size of a disk
	}
	if pool.Available != nil {
		out.available = int64(pool.Available.Value) //nolint:gosec // the size of a disk
	}

	h.mu.Lock()
	h.storage = out
	h.mu.Unlock()

	return out, nil
}

func (h *host) newPoolError(problem string) error {
	return hypervisor.Errorf(hypervisor.Rejected, "StoragePoolUnusable",
		"storage pool %s of host %s %s", h.config.StoragePool, h.config.Name, problem)
}

func (h *host) newPoolMissingError() error {
	return h.newPoolError(fmt.Sprintf("does not exist: "+createPool+", or correct spec.libvirt", h.config.StoragePool))
}

// knownStorage returns the pool as it was read last. It reads the pool if it was not read yet.
func (h *host) knownStorage(ctx context.Context) (storage, error) {
	h.mu.Lock()
	known := h.storage
	h.mu.Unlock()

	if known.dir != "" {
		return known, nil
	}

	return h.readStorage(ctx)
}

// recentStorage returns the pool as it was read a few seconds ago at most, for the placement of machines.
func (h *host) recentStorage(ctx context.Context) (storage, error) {
	h.mu.Lock()
	known := h.storage
	h.mu.Unlock()

	if !known.readAt.IsZero() && h.provider.clock.Since(known.readAt) <= h.provider.maxListAge() {
		return known, nil
	}

	return h.readStorage(ctx)
}

// callPool makes a call that needs the reference to the pool. If the pool was replaced, callPool looks it up again.
func (h *host) callPool(ctx context.Context, op operation, do func(*golibvirt.Libvirt, golibvirt.StoragePool) error) error {
	known, err := h.knownStorage(ctx)
	if err != nil {
		return err
	}

	call := func(ref golibvirt.StoragePool) error {
		return h.call(ctx, op, func(rpc *golibvirt.Libvirt) error { return do(rpc, ref) })
	}

	err = call(known.ref)
	if hasCode(err, golibvirt.ErrNoStoragePool) {
		if known, err = h.readStorage(ctx); err == nil {
			err = call(known.ref)
		}
	}

	return err
}

// volume returns the reference to a volume of the host's pool. libvirt finds a volume by these names.
func (h *host) volume(name string) golibvirt.StorageVol {
	return golibvirt.StorageVol{Pool: h.config.StoragePool, Name: name}
}
