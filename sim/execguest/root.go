// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package execguest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxCopySize is the size in bytes up to which CopyTree copies a file of an image. CopyTree links to
// a larger file.
const maxCopySize = 1 << 20

// ConfigPath is the path of the bootstrap service's configuration, relative to the machine's root
// directory.
const ConfigPath = "etc/hyperfleet/runner-config.json"

// ApplyCloudInit writes the files of a cloud-init ISO below root, as cloud-init would. It logs the
// parts that a real guest would execute and does not execute them, because they would run on this
// machine and not in a virtual one. If files is nil, there is no cloud-init ISO, and ApplyCloudInit
// returns an error.
func ApplyCloudInit(files map[string][]byte, root string, log func(format string, args ...any)) error {
	if files == nil {
		return errors.New("no datasource found")
	}
	cc, err := parseUserData(files["user-data"])
	if err != nil {
		return err
	}
	for _, part := range cc.skipped {
		log("cloud-init: skip %s: the simulator does not execute this part", part)
	}
	rootDir, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("open root directory: %w", err)
	}
	defer func() { _ = rootDir.Close() }()
	if name := cmp.Or(parseMetaHostname(files["meta-data"]), cc.hostname); name != "" {
		cc.files = append([]guestFile{{path: "/etc/hostname", data: []byte(name + "\n"), mode: 0o644}}, cc.files...)
	}
	for _, f := range cc.files {
		if err := f.write(rootDir); err != nil {
			return fmt.Errorf("write_files %s: %w", f.path, err)
		}
	}
	log("cloud-init: wrote %d files", len(cc.files))
	return nil
}

func parseMetaHostname(data []byte) string {
	var meta map[string]any
	if yaml.Unmarshal(data, &meta) != nil {
		return ""
	}
	for _, k := range []string{"local-hostname", "hostname"} {
		if v, ok := meta[k].(string); ok {
			return v
		}
	}
	return ""
}

// write writes a file below the root. os.Root refuses links that lead out of the root.
func (f guestFile) write(root *os.Root) error {
	name := strings.TrimPrefix(filepath.Clean("/"+f.path), "/")
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if f.shouldAppend {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	out, err := root.OpenFile(name, flags, fs.FileMode(f.mode).Perm())
	if err != nil {
		return err
	}
	_, err = out.Write(f.data)
	return errors.Join(err, out.Chmod(fs.FileMode(f.mode).Perm()), out.Close())
}

// CopyTree copies an image to a new root directory. It copies directories and files of up to
// maxCopySize bytes, so that the VM can change them. It links to larger files of the image.
func CopyTree(image, destRoot string) error {
	image, err := filepath.Abs(image)
	if err != nil {
		return fmt.Errorf("find image: %w", err)
	}
	return filepath.WalkDir(image, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(image, path)
		if err != nil {
			return err
		}
		dest := filepath.Join(destRoot, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.MkdirAll(dest, info.Mode().Perm()|0o700)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, dest)
		case info.Size() > maxCopySize:
			return os.Symlink(path, dest)
		default:
			return copyFile(path, dest, info.Mode().Perm())
		}
	})
}

func copyFile(source, dest string, mode fs.FileMode) error {
	in, err := os.Open(source) // #nosec G304 -- below the image that the model names
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(dest, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode|0o200) // #nosec G304 -- below the VM's root
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
