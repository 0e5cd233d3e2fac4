// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kdomanski/iso9660"

	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/test/exe"
)

// readISO lists an image with the reader of another project.
func readISO(t *testing.T, img []byte) map[string][]byte {
	t.Helper()

	image, err := iso9660.OpenImage(bytes.NewReader(img))
	if err != nil {
		t.Fatalf("open image: %v", err)
	}

	root, err := image.RootDir()
	if err != nil {
		t.Fatalf("read root: %v", err)
	}

	children, err := root.GetChildren()
	if err != nil {
		t.Fatalf("list root: %v", err)
	}

	got := map[string][]byte{}

	for _, c := range children {
		data, err := io.ReadAll(c.Reader())
		if err != nil {
			t.Fatalf("read %s: %v", c.Name(), err)
		}

		got[c.Name()] = data
	}

	return got
}

func newSampleFiles() map[string][]byte {
	return map[string][]byte{
		"user-data":         []byte("#cloud-config\n{}\n"),
		"meta-data":         []byte("instance-id: i-1\n"),
		"network-config":    {},
		"bootstrap-service": bytes.Repeat([]byte("0123456789abcdef"), 1000),
		"bootstrap_service": []byte("the same plain name"),
		"a.b.tar.gz":        []byte("dots"),
	}
}

func TestISOWithAnotherReader(t *testing.T) {
	t.Parallel()

	cases := map[string]map[string][]byte{
		"NoCloud files and clashing plain names": newSampleFiles(),
		"longest name":                           {strings.Repeat("x", 64): []byte("y")},
		"full sectors":                           {"a": make([]byte, 4096), "b": []byte("z")},
	}
	for name, files := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			img, err := cloudinit.BuildISO(files)
			if err != nil {
				t.Fatal(err)
			}

			got := readISO(t, img)
			for k, v := range got { // an empty file reads as nil or empty
				if len(v) == 0 {
					got[k] = []byte{}
				}
			}

			if diff := cmp.Diff(files, got); diff != "" {
				t.Errorf("files differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestISOIsDeterministic(t *testing.T) {
	t.Parallel()

	first, err := cloudinit.BuildISO(newSampleFiles())
	if err != nil {
		t.Fatal(err)
	}

	second, err := cloudinit.BuildISO(newSampleFiles())
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(first, second) {
		t.Error("two images of the same files differ")
	}
}

func TestISORejectsNames(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"", ".", "..", ".hidden", "a/b", "a b", "ä", strings.Repeat("x", 65), "a;1"} {
		if _, err := cloudinit.BuildISO(map[string][]byte{name: nil}); err == nil || !strings.Contains(err.Error(), "file name") {
			t.Errorf("name %q: error %v", name, err)
		}
	}
}

// TestISOForSystemTools reads names, label and contents with the tools of operating systems.
func TestISOForSystemTools(t *testing.T) {
	t.Parallel()

	img, err := cloudinit.BuildISO(newSampleFiles())
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(path, img, 0o600); err != nil {
		t.Fatal(err)
	}

	cases := map[string]struct {
		tool, pkg string
		args      []string
		want      []string
	}{
		"Rock Ridge":   {"isoinfo", "genisoimage", []string{"-R", "-f", "-i", path}, []string{"/user-data\n", "/network-config\n", "/bootstrap_service\n", "/a.b.tar.gz\n"}},
		"Joliet":       {"isoinfo", "genisoimage", []string{"-J", "-f", "-i", path}, []string{"/user-data\n", "/network-config\n", "/bootstrap_service\n", "/a.b.tar.gz\n"}},
		"label":        {"isoinfo", "genisoimage", []string{"-d", "-i", path}, []string{"Volume id: cidata\n", "Joliet with UCS level 3", "Rock Ridge signatures"}},
		"plain":        {"isoinfo", "genisoimage", []string{"-f", "-i", path}, []string{"/USER_DATA.;1\n", "/META_DATA.;1\n"}},
		"contents":     {"isoinfo", "genisoimage", []string{"-R", "-x", "/meta-data", "-i", path}, []string{"instance-id: i-1\n"}},
		"owner, modes": {"isoinfo", "genisoimage", []string{"-R", "-l", "-i", path}, []string{"-r-x------   1    0    0"}},
		"blkid":        {"blkid", "util-linux", []string{"-p", "-o", "export", path}, []string{"LABEL=cidata\n", "TYPE=iso9660\n"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			out, err := exec.Command(exe.FindProgram(t, tc.tool, tc.pkg), tc.args...).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", tc.tool, err, out)
			}

			for _, want := range tc.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%s does not print %q:\n%s", tc.tool, want, out)
				}
			}
		})
	}
}

// TestISOWithLargeDirectory uses isoinfo, because the Go reader reads only directories of one sector.
func TestISOWithLargeDirectory(t *testing.T) {
	t.Parallel()

	isoinfo := exe.FindProgram(t, "isoinfo", "genisoimage")
	files := map[string][]byte{}

	for i := range 200 {
		files[fmt.Sprintf("file-with-a-rather-long-name-%04d", i)] = fmt.Append(nil, i)
	}

	img, err := cloudinit.BuildISO(files)
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(path, img, 0o600); err != nil {
		t.Fatal(err)
	}

	for _, names := range []string{"-R", "-J"} {
		out, err := exec.Command(isoinfo, names, "-f", "-i", path).CombinedOutput()
		if err != nil {
			t.Fatalf("isoinfo: %v\n%s", err, out)
		}

		for name := range files {
			if !strings.Contains(string(out), "/"+name+"\n") {
				t.Errorf("%s: %s is missing", names, name)
			}
		}
	}

	out, err := exec.Command(isoinfo, "-R", "-x", "/file-with-a-rather-long-name-0137", "-i", path).CombinedOutput()
	if err != nil || string(out) != "137" {
		t.Errorf("contents: %q, %v", out, err)
	}
}
