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

// copyUpTo is the size in bytes up to which files of an image are copied; larger ones are
// linked to.
const copyUpTo = 1 << 20

// Config is where the bootstrap service's configuration is below a root.
const Config = "etc/hyperfleet/runner-config.json"

// CloudInit does what cloud-init would with the files of a cloud-init ISO, below the root. What a
// real guest would run is told to log and not run: it would run on this machine, not in a
// virtual one. nil files are no cloud-init ISO.
func CloudInit(files map[string][]byte, root string, log func(format string, args ...any)) error {
	if files == nil {
		return errors.New("no datasource found")
	}
	cc, err := parseUserData(files["user-data"])
	if err != nil {
		return err
	}
	for _, kind := range cc.skipped {
		log("cloud-init: not run here: %s", kind)
	}
	inside, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("open root directory: %w", err)
	}
	defer func() { _ = inside.Close() }()
	if name := cmp.Or(metaHostname(files["meta-data"]), cc.hostname); name != "" {
		cc.files = append([]guestFile{{path: "/etc/hostname", data: []byte(name + "\n"), mode: 0o644}}, cc.files...)
	}
	for _, f := range cc.files {
		if err := f.write(inside); err != nil {
			return fmt.Errorf("write_files %s: %w", f.path, err)
		}
	}
	log("cloud-init: wrote %d files", len(cc.files))
	return nil
}

func metaHostname(data []byte) string {
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

// write puts a file below the root; links out of it are refused by os.Root.
func (f guestFile) write(root *os.Root) error {
	name := strings.TrimPrefix(filepath.Clean("/"+f.path), "/")
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if f.add {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	out, err := root.OpenFile(name, flags, fs.FileMode(f.mode).Perm())
	if err != nil {
		return err
	}
	_, err = out.Write(f.data)
	return errors.Join(err, out.Chmod(fs.FileMode(f.mode).Perm()), out.Close())
}

// CopyTree copies an image: directories and small files are the VM's own,
// large files are links to the image's.
func CopyTree(from, to string) error {
	from, err := filepath.Abs(from)
	if err != nil {
		return fmt.Errorf("find image: %w", err)
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dest := filepath.Join(to, rel)
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
		case info.Size() > copyUpTo:
			return os.Symlink(path, dest)
		default:
			return copyFile(path, dest, info.Mode().Perm())
		}
	})
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from) // #nosec G304 -- below the image the model names
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode|0o200) // #nosec G304 -- below the VM's root
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
