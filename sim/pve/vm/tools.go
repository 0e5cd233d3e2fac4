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

// Tools holds the paths of QEMU's programs.
type Tools struct {
	// QEMU is the path of qemu-system-x86_64, and Img is the path of qemu-img.
	QEMU, Img string
}

// toolTimeout is the timeout of one run of qemu-img. A full copy takes the longest.
const toolTimeout = 10 * time.Minute

// FindTools finds QEMU's programs on the PATH. The error names the Debian packages of missing
// programs.
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
			errs = append(errs, fmt.Errorf("find program %s: not installed: run apt-get install %s", tool.name, tool.debian))
			continue
		}
		*tool.path = path
	}
	return t, errors.Join(errs...)
}

// ImageInfo is the header of an image.
type ImageInfo struct {
	// Format is the format, such as qcow2 or raw. Size is the size in bytes that the guest sees.
	Format string `json:"format"`
	Size   int64  `json:"virtual-size"`
	// Backing is the path of the image below an overlay. It is empty if the image is not an overlay.
	Backing string `json:"full-backing-filename"`
}

// Info reads the header of an image, even while a machine uses the image.
func (t Tools) Info(ctx context.Context, path string) (ImageInfo, error) {
	out, err := t.runImg(ctx, "info", "--force-share", "--output=json", path)
	if err != nil {
		return ImageInfo{}, fmt.Errorf("read image %s: %w", path, err)
	}
	var info ImageInfo
	if err := json.Unmarshal(out, &info); err != nil {
		return info, fmt.Errorf("read image %s: %w", path, err)
	}
	return info, nil
}

// Create creates an empty qcow2 image of size bytes.
func (t Tools) Create(ctx context.Context, path string, size int64) error {
	if _, err := t.runImg(ctx, "create", "-q", "-f", "qcow2", path, strconv.FormatInt(size, 10)); err != nil {
		return fmt.Errorf("create image %s: %w", path, err)
	}
	return nil
}

// Overlay creates a linked clone: a qcow2 image of size bytes that holds only the differences from
// the base. The base must not change afterwards.
func (t Tools) Overlay(ctx context.Context, path, base, baseFormat string, size int64) error {
	_, err := t.runImg(ctx, "create", "-q", "-f", "qcow2", "-b", base, "-F", baseFormat, path, strconv.FormatInt(size, 10))
	if err != nil {
		return fmt.Errorf("create linked image %s on %s: %w", path, base, err)
	}
	return nil
}

// Copy creates a qcow2 image with the complete content of another image and its bases.
func (t Tools) Copy(ctx context.Context, path, source string) error {
	if _, err := t.runImg(ctx, "convert", "-q", "-O", "qcow2", source, path); err != nil {
		return fmt.Errorf("copy image %s to %s: %w", source, path, err)
	}
	return nil
}

// Resize grows an image that no machine uses.
func (t Tools) Resize(ctx context.Context, path string, size int64) error {
	if _, err := t.runImg(ctx, "resize", "-q", "-f", "qcow2", path, strconv.FormatInt(size, 10)); err != nil {
		return fmt.Errorf("resize image %s: %w", path, err)
	}
	return nil
}

// runImg runs qemu-img. The error is the program's error output.
func (t Tools) runImg(ctx context.Context, args ...string) ([]byte, error) {
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
