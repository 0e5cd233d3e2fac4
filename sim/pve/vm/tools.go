// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Tools are the programs of QEMU.
type Tools struct {
	// QEMU is qemu-system-x86_64, Img qemu-img.
	QEMU, Img string
}

// toolTimeout bounds one run of qemu-img; a full copy is the longest.
const toolTimeout = 10 * time.Minute

// FindTools looks QEMU's programs up on the PATH. The error names the Debian
// packages of what is missing.
func FindTools() (Tools, error) {
	var t Tools
	var errs []error
	for _, tool := range []struct {
		path         *string
		name, debian string
	}{
		{&t.QEMU, "qemu-system-x86_64", "qemu-system-x86"}, {&t.Img, "qemu-img", "qemu-utils"},
	} {
		path, err := exec.LookPath(tool.name)
		if err != nil {
			errs = append(errs, fmt.Errorf("find program %s: it is not installed: apt-get install %s", tool.name, tool.debian))
			continue
		}
		*tool.path = path
	}
	return t, errors.Join(errs...)
}

// ImageInfo is what an image says of itself.
type ImageInfo struct {
	// Format is qcow2, raw and so on; Size what the guest sees, in bytes.
	Format string `json:"format"`
	Size   int64  `json:"virtual-size"`
	// Backing is the image that an overlay is on; empty if it stands alone.
	Backing string `json:"full-backing-filename"`
}

// Info reads an image's header, also while a machine uses it.
func (t Tools) Info(ctx context.Context, path string) (ImageInfo, error) {
	out, err := t.img(ctx, "info", "--force-share", "--output=json", path)
	if err != nil {
		return ImageInfo{}, fmt.Errorf("read image %s: %w", path, err)
	}
	var info ImageInfo
	if err := json.Unmarshal(out, &info); err != nil {
		return info, fmt.Errorf("read image %s: %w", path, err)
	}
	return info, nil
}

// Create makes an empty qcow2 image of size bytes.
func (t Tools) Create(ctx context.Context, path string, size int64) error {
	if _, err := t.img(ctx, "create", "-q", "-f", "qcow2", path, strconv.FormatInt(size, 10)); err != nil {
		return fmt.Errorf("create image %s: %w", path, err)
	}
	return nil
}

// Overlay makes a linked clone: a qcow2 image of size bytes that holds only
// what differs from the base, which must not change any more.
func (t Tools) Overlay(ctx context.Context, path, base, baseFormat string, size int64) error {
	_, err := t.img(ctx, "create", "-q", "-f", "qcow2", "-b", base, "-F", baseFormat, path, strconv.FormatInt(size, 10))
	if err != nil {
		return fmt.Errorf("create linked image %s on %s: %w", path, base, err)
	}
	return nil
}

// Copy makes a qcow2 image that holds all of another one and its bases.
func (t Tools) Copy(ctx context.Context, path, from string) error {
	if _, err := t.img(ctx, "convert", "-q", "-O", "qcow2", from, path); err != nil {
		return fmt.Errorf("copy image %s to %s: %w", from, path, err)
	}
	return nil
}

// Resize grows an image that no machine uses.
func (t Tools) Resize(ctx context.Context, path string, size int64) error {
	if _, err := t.img(ctx, "resize", "-q", "-f", "qcow2", path, strconv.FormatInt(size, 10)); err != nil {
		return fmt.Errorf("resize image %s: %w", path, err)
	}
	return nil
}

// img runs qemu-img; its error is what the program says.
func (t Tools) img(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.Img, args...) // #nosec G204 -- found by FindTools; no shell
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(errOut.String()); text != "" {
			return nil, errors.New(text)
		}
		return nil, err
	}
	return out.Bytes(), nil
}
