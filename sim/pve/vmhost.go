// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// vmHost holds what all VMs under QEMU share.
type vmHost struct {
	tools     vm.Tools
	cfg       QEMU
	disks     string // directory of the disk images
	media     string // directory of the media files, which exist while QEMU opens them
	serial    string // directory of the consoles
	lastImage int    // number of the last image; guarded by Server.mu
}

// image is the file of a disk volume. Server.mu guards its fields.
type image struct {
	path     string
	source   string // the file from which the image is cloned
	linked   bool   // the image is an overlay
	base     *image
	overlays int
	released bool
}

// validate returns an error if no machine can start with this configuration.
func (q QEMU) validate() error {
	switch vm.Accel(q.Accel) {
	case "", vm.TCG, vm.KVM:
	default:
		return fmt.Errorf("guest: qemu: unknown accel %q (use tcg or kvm)", q.Accel)
	}
	if q.Kernel == "" && q.Initrd+q.Append != "" {
		return errors.New("guest: qemu: initrd and append require a kernel")
	}
	for _, file := range []string{q.Image, q.Kernel, q.Initrd} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("guest: qemu: %w", err)
		}
	}
	return nil
}

// prepareVMHost finds QEMU and creates the directories, if guests run under QEMU.
func (s *Server) prepareVMHost() error {
	if s.model.Guest.Kind != GuestQEMU || s.model.Guest.Script != nil {
		return nil
	}
	tools, err := vm.FindTools()
	if err != nil {
		return err
	}
	if err := s.ensureWorkDir(); err != nil {
		return err
	}
	h := &vmHost{tools: tools, cfg: s.model.Guest.QEMU, disks: filepath.Join(s.workDir, "disks"),
		media: filepath.Join(s.workDir, "media"), serial: filepath.Join(s.workDir, "serial")}
	if s.model.Guest.WorkDir != "" {
		h.serial = filepath.Join(s.model.Guest.WorkDir, "serial")
	}
	for _, dir := range []string{h.disks, h.media, h.serial} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create directory for VMs: %w", err)
		}
	}
	s.host = h
	return nil
}

func (h *vmHost) serialLogPath(vmid int) string {
	return filepath.Join(h.serial, fmt.Sprintf("vm-%d.log", vmid))
}

// newImage returns an image with a new file name for a volume. A file name is never used again. A
// volume can therefore be renamed, moved or created again while overlays still use its old file.
func (h *vmHost) newImage(v *volume) *image {
	h.lastImage++
	_, name, _ := splitVolid(v.id)
	name = strings.TrimSuffix(filepath.Base(name), ".qcow2")
	return &image{path: filepath.Join(h.disks, fmt.Sprintf("%s.%d.qcow2", name, h.lastImage))}
}

// cloneImage returns an image for a cloned volume, or nil if the source has none. The caller holds
// Server.mu.
func (h *vmHost) cloneImage(v *volume, d cloneDisk) *image {
	if h == nil || d.base.image == nil {
		return nil
	}
	img := h.newImage(v)
	img.source, img.linked = d.base.image.path, !d.full
	if img.linked {
		img.base = d.base.image
		img.base.overlays++
	}
	return img
}

// release deletes the file. If other images are overlays on the file, the last of them deletes it,
// so that a clone survives the deletion of its base, as a thin snapshot does.
func (i *image) release() {
	if i == nil || i.released {
		return
	}
	i.released = true
	for ; i != nil && i.released && i.overlays == 0; i = i.base {
		_ = os.Remove(i.path) // the file may never have been created
		if i.base != nil {
			i.base.overlays--
		}
	}
}

// createTemplateImage creates the file of a template's disk: an overlay on the template's image. The
// disk gets the size of the image.
func (s *Server) createTemplateImage(t Template, v *volume) error {
	if s.host == nil {
		return nil
	}
	v.image = s.host.newImage(v)
	file := cmp.Or(t.Image, s.host.cfg.Image)
	if file == "" {
		return s.host.tools.Create(s.ctx, v.image.path, v.size)
	}
	file, err := filepath.Abs(file)
	if err != nil {
		return fmt.Errorf("find image: %w", err)
	}
	info, err := s.host.tools.Info(s.ctx, file)
	if err != nil {
		return err
	}
	v.size, v.used = info.Size, info.Size
	return s.host.tools.Overlay(s.ctx, v.image.path, file, info.Format, info.Size)
}

// createCloneImage creates the file of a cloned volume.
func (s *Server) createCloneImage(ctx context.Context, v *volume) error {
	if v.image == nil {
		return nil
	}
	var err error
	if tools := s.host.tools; v.image.linked {
		err = tools.Overlay(ctx, v.image.path, v.image.source, "qcow2", v.size)
	} else {
		err = tools.Copy(ctx, v.image.path, v.image.source)
	}
	if err != nil {
		return dief("%s", err)
	}
	return nil
}

// ensureImage creates an empty file for a disk that has none.
func (s *Server) ensureImage(ctx context.Context, v *volume) error {
	s.mu.Lock()
	isNew := v.image == nil
	if isNew {
		v.image = s.host.newImage(v)
	}
	path, size := v.image.path, v.size
	s.mu.Unlock()
	if !isNew {
		return nil
	}
	if err := s.host.tools.Create(ctx, path, size); err != nil {
		return dief("%s", err)
	}
	return nil
}

// resizeImage grows the file of a disk. QEMU reports the new size to a running guest.
func (s *Server) resizeImage(ctx context.Context, r *resize) error {
	if r.vol.image == nil || r.newSize == r.vol.size {
		return nil
	}
	var err error
	if r.run == nil {
		err = s.host.tools.Resize(ctx, r.vol.image.path, r.newSize)
	} else if g, ok := r.run.guest.(*qemuGuest); ok {
		err = g.vm.Resize(ctx, r.disk, r.newSize)
	}
	if err != nil {
		return dief("%s", err)
	}
	return nil
}

// writeMediumFile writes the content of a CD drive to a file for QEMU.
func (h *vmHost) writeMediumFile(vmid int, slot string, data []byte) (string, error) {
	f, err := os.CreateTemp(h.media, strconv.Itoa(vmid)+"-"+slot+"-*.iso") // mode 0600
	if err != nil {
		return "", fmt.Errorf("write medium: %w", err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("write medium: %w", err), os.Remove(f.Name()))
	}
	return f.Name(), nil
}
