// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// vmHost is what VMs under QEMU share.
type vmHost struct {
	tools  vm.Tools
	cfg    QEMU
	disks  string // directory of the disk images
	media  string // of what is in CD drives, while QEMU opens it
	serial string // of the consoles
	next   int    // number of the next image; guarded by Server.mu
}

// image is the file behind a disk volume. Its fields are guarded by Server.mu.
type image struct {
	path     string
	from     string // what it is cloned from
	linked   bool   // as an overlay
	base     *image
	overlays int
	dropped  bool
}

// validate reports what makes a machine impossible.
func (q QEMU) validate() error {
	switch vm.Accel(q.Accel) {
	case "", vm.TCG, vm.KVM:
	default:
		return fmt.Errorf("guest: qemu: unknown accel %q (use tcg or kvm)", q.Accel)
	}
	if q.Kernel == "" && q.Initrd+q.Append != "" {
		return errors.New("guest: qemu: initrd and append need a kernel")
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

// newHost finds QEMU and makes the directories, if guests need them.
func (s *Server) newHost() error {
	if s.model.Guest.Kind != GuestQEMU || s.model.Guest.Script != nil {
		return nil
	}
	tools, err := vm.FindTools()
	if err != nil {
		return err
	}
	if err := s.makeWorkDir(); err != nil {
		return err
	}
	h := &vmHost{tools: tools, cfg: s.model.Guest.QEMU, disks: filepath.Join(s.workDir, "disks"),
		media: filepath.Join(s.workDir, "media"), serial: filepath.Join(s.workDir, "serial")}
	if s.model.Guest.WorkDir != "" {
		h.serial = filepath.Join(s.model.Guest.WorkDir, "serial")
	}
	for _, dir := range []string{h.disks, h.media, h.serial} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make directory for VMs: %w", err)
		}
	}
	s.host = h
	return nil
}

func (h *vmHost) serialLog(vmid int) string {
	return filepath.Join(h.serial, fmt.Sprintf("vm-%d.log", vmid))
}

// newImage names a file for a volume. Names are never used twice, so a volume
// may be renamed, moved and made anew while others still are on its file.
func (h *vmHost) newImage(v *volume) *image {
	h.next++
	_, name, _ := splitVolid(v.id)
	name = strings.TrimSuffix(filepath.Base(name), ".qcow2")
	return &image{path: filepath.Join(h.disks, fmt.Sprintf("%s.%d.qcow2", name, h.next))}
}

// clone names the file of a cloned volume; Server.mu is held.
func (h *vmHost) clone(v *volume, d cloneDisk) *image {
	if h == nil || d.base.image == nil {
		return nil
	}
	img := h.newImage(v)
	img.from, img.linked = d.base.image.path, !d.full
	if img.linked {
		img.base = d.base.image
		img.base.overlays++
	}
	return img
}

// drop removes the file, or, while there are overlays on it, leaves that to the
// last of them: like a thin snapshot, a clone survives its base.
func (i *image) drop() {
	if i == nil || i.dropped {
		return
	}
	i.dropped = true
	for ; i != nil && i.dropped && i.overlays == 0; i = i.base {
		_ = os.Remove(i.path) // it may never have been made
		if i.base != nil {
			i.base.overlays--
		}
	}
}

// templateImage puts an overlay on the template's image behind its disk, which
// takes on the image's size.
func (s *Server) templateImage(t Template, v *volume) error {
	if s.host == nil {
		return nil
	}
	v.image = s.host.newImage(v)
	file := cmpOr(t.Image, s.host.cfg.Image)
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

// makeImage makes the file of a cloned volume.
func (s *Server) makeImage(ctx context.Context, v *volume) error {
	if v.image == nil {
		return nil
	}
	var err error
	if tools := s.host.tools; v.image.linked {
		err = tools.Overlay(ctx, v.image.path, v.image.from, "qcow2", v.size)
	} else {
		err = tools.Copy(ctx, v.image.path, v.image.from)
	}
	if err != nil {
		return dief("%s", err)
	}
	return nil
}

// ensureImage makes the file of a disk that has had none: an empty one.
func (s *Server) ensureImage(ctx context.Context, v *volume) error {
	s.mu.Lock()
	fresh := v.image == nil
	if fresh {
		v.image = s.host.newImage(v)
	}
	path, size := v.image.path, v.size
	s.mu.Unlock()
	if !fresh {
		return nil
	}
	if err := s.host.tools.Create(ctx, path, size); err != nil {
		return dief("%s", err)
	}
	return nil
}

// resizeImage grows the file behind a disk; a running guest is told.
func (s *Server) resizeImage(ctx context.Context, r *resize) error {
	if r.vol.image == nil || r.want == r.vol.size {
		return nil
	}
	var err error
	if r.run == nil {
		err = s.host.tools.Resize(ctx, r.vol.image.path, r.want)
	} else if g, ok := r.run.guest.(*qemuGuest); ok {
		err = g.vm.Resize(ctx, r.disk, r.want)
	}
	if err != nil {
		return dief("%s", err)
	}
	return nil
}

// mediumFile writes what is in a CD drive to a file for QEMU to open.
func (h *vmHost) mediumFile(vmid int, slot string, data []byte) (string, error) {
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
