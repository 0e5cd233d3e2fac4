// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release makes everything that a release has, in one folder: programs, image
// archives, charts, manifests, an OLM bundle, a site of the documentation, an SBOM, notes, checksums, and their
// signature if there is a key. It needs no network and no container engine, and the same commit
// makes the same bytes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// release is what one is made of.
type release struct {
	// root is the checkout, dist where the release goes.
	root, dist string
	// version is a tag such as v0.1.0.
	version string
	commit  string
	// time of the commit: the time of every file.
	time time.Time
	// registry is what image names begin with, such as registry.example.com/fleet. Empty:
	// image names are bare, and users say where they have put the images.
	registry string
	// arch are the architectures that images and programs are made for, all under Linux.
	arch []string
	// clients are the other systems that the programs for people's own machines are made for.
	clients []platform
	// tags that the programs are built with, and flags that they are linked with.
	tags, ldflags string
	// key is the file of the key that signs. Empty: nothing is signed.
	key string
}

var versionForm = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	if err := makeRelease(ctx); err != nil {
		sayf("%v", err)

		return 1
	}

	return 0
}

// sayf tells how far it is.
func sayf(format string, values ...any) { fmt.Fprintf(os.Stderr, "release: "+format+"\n", values...) }

func makeRelease(ctx context.Context) error {
	var (
		r      release
		commit string
		arch   string
		client string
	)

	flag.StringVar(&r.root, "root", ".", "the checkout")
	flag.StringVar(&r.dist, "dist", "dist", "folder that the release goes to; it is emptied")
	flag.StringVar(&r.version, "version", "", "version, such as v0.1.0")
	flag.StringVar(&r.commit, "commit", "", "commit that is built")
	flag.StringVar(&commit, "time", "", "time of the commit, in RFC 3339")
	flag.StringVar(&r.registry, "registry", "", "what image names begin with, such as registry.example.com/fleet")
	flag.StringVar(&arch, "arch", "amd64 arm64", "architectures, with spaces between them")
	flag.StringVar(&client, "clients", "", "systems besides that people have, such as darwin/arm64, with spaces between them")
	flag.StringVar(&r.tags, "tags", "", "build tags of the programs")
	flag.StringVar(&r.ldflags, "ldflags", "", "flags that programs are linked with")
	flag.StringVar(&r.key, "key", "", "PEM file with the ECDSA key that signs SHA256SUMS")
	flag.Parse()

	r.arch = strings.Fields(arch)

	var err error
	if r.clients, err = platforms(client); err != nil {
		return fmt.Errorf("read -clients: %w", err)
	}

	if r.time, err = time.Parse(time.RFC3339, commit); err != nil {
		return fmt.Errorf("read -time: %w", err)
	}

	return r.run(ctx)
}

// run makes it. Each step writes files into dist; the checksums come last.
func (r *release) run(ctx context.Context) error {
	if !versionForm.MatchString(r.version) {
		return fmt.Errorf("version %q is not one such as v0.1.0", r.version)
	}

	if err := r.empty(); err != nil {
		return err
	}

	for _, step := range []struct {
		name string
		make func() error
	}{
		{"programs", func() error { return r.programs(ctx) }}, {"images", r.images}, {"charts", r.charts},
		{"manifests", r.manifests}, {"deploy", r.deploy}, {"bundle", r.bundle}, {"site", func() error { return r.site(ctx) }},
		{"SBOM", r.sbom}, {"notes", r.notes}, {"checksums", r.checksums}, {"signature", r.sign},
	} {
		begun := time.Now()

		if err := step.make(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}

		sayf("%s: done in %.1fs", step.name, time.Since(begun).Seconds())
	}

	return nil
}

// empty makes the folder, or removes what an earlier release has left in it. Another folder is left
// alone: nobody means to lose what is in it.
func (r *release) empty() error {
	entries, err := os.ReadDir(r.dist)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("look into %s: %w", r.dist, err)
	}

	ours := func(e os.DirEntry) bool {
		return strings.Contains(e.Name(), "hyperfleet") || strings.HasPrefix(e.Name(), "bootstrap-service-") ||
			slices.Contains([]string{sumsFile, signatureFile, notesFile, "site"}, e.Name())
	}

	for _, entry := range entries {
		if !ours(entry) {
			return fmt.Errorf("%s is no file of a release: %s is not emptied: name another folder", r.file(entry.Name()), r.dist)
		}
	}

	if err := os.RemoveAll(r.dist); err != nil {
		return fmt.Errorf("empty %s: %w", r.dist, err)
	}

	//nolint:gosec // everybody may read a release
	if err := os.MkdirAll(r.dist, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", r.dist, err)
	}

	return nil
}

// plain is the version as charts and packages have it, without the v.
func (r *release) plain() string { return strings.TrimPrefix(r.version, "v") }

// image is the full name of an image.
func (r *release) image(name string) string {
	if r.registry != "" {
		name = r.registry + "/" + name
	}

	return name
}

func (r *release) file(name string) string { return filepath.Join(r.dist, name) }

func (r *release) source(name string) string { return filepath.Join(r.root, filepath.FromSlash(name)) }

func (r *release) write(name, text string) error {
	if err := os.WriteFile(r.file(name), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}

	return nil
}
