// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release builds all files of a release in one folder: programs, image archives, charts, manifests,
// an OLM bundle, a documentation site, manual pages, an SBOM, release notes and checksums. With a key, it also signs the
// checksums. It needs no network and no container engine, and builds of the same commit are identical.
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

// release has the inputs of a release.
type release struct {
	// root is the checkout, and dist the output folder.
	root, dist string
	// version is a tag, for example v0.1.0.
	version string
	commit  string
	// time is the time of the commit and the modification time of all packed files.
	time time.Time
	// registry is the prefix of image names, for example registry.example.com/fleet. If it is empty, the
	// image names have no prefix, and users set the registry themselves.
	registry string
	// arch has the architectures of images and programs for Linux.
	arch []string
	// url is where users download the files of the release. It may be empty.
	url string
	// clients has the other platforms for which client programs are built.
	clients []platform
	// tags are the build tags, and ldflags the linker flags of the programs.
	tags, ldflags string
	// key is the file with the signing key. If it is empty, the release is not signed.
	key string
}

var versionForm = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	if err := makeRelease(ctx); err != nil {
		logf("%v", err)

		return 1
	}

	return 0
}

// logf prints progress to standard error.
func logf(format string, values ...any) { fmt.Fprintf(os.Stderr, "release: "+format+"\n", values...) }

func makeRelease(ctx context.Context) error {
	var (
		r          release
		commitTime string
		arch       string
		clients    string
	)

	flag.StringVar(&r.root, "root", ".", "folder of the checkout")
	flag.StringVar(&r.dist, "dist", "dist", "output folder; files of an earlier release in it are deleted")
	flag.StringVar(&r.version, "version", "", "version, for example v0.1.0")
	flag.StringVar(&r.commit, "commit", "", "commit of the release")
	flag.StringVar(&commitTime, "time", "", "time of the commit, in RFC 3339")
	flag.StringVar(&r.registry, "registry", "", "prefix of image names, and target of -publish, such as registry.example.com/fleet")
	flag.StringVar(&r.url, "url", "", "URL below which users download the files, for a krew manifest and a Homebrew formula")
	flag.StringVar(&arch, "arch", "amd64 arm64", "architectures for Linux, separated by spaces")
	flag.StringVar(&clients, "clients", "", "other platforms for client programs, for example darwin/arm64, separated by spaces")
	flag.StringVar(&r.tags, "tags", "", "build tags of the programs")
	flag.StringVar(&r.ldflags, "ldflags", "", "linker flags of the programs")
	flag.StringVar(&r.key, "key", "", "PEM file with the ECDSA key that signs SHA256SUMS")
	isPublish := flag.Bool("publish", false, "push the images and charts in dist to the registry, and build nothing")
	flag.Parse()

	if *isPublish {
		return r.publish(ctx)
	}

	r.arch = strings.Fields(arch)

	var err error
	if r.clients, err = parsePlatforms(clients); err != nil {
		return fmt.Errorf("parse -clients: %w", err)
	}

	if r.time, err = time.Parse(time.RFC3339, commitTime); err != nil {
		return fmt.Errorf("parse -time: %w", err)
	}

	return r.run(ctx)
}

// run builds the release. Each step writes files to dist. The checksums and their signature are the last
// steps.
func (r *release) run(ctx context.Context) error {
	if !versionForm.MatchString(r.version) {
		return fmt.Errorf("version %q must have the form v0.1.0", r.version)
	}

	if err := r.emptyDist(); err != nil {
		return err
	}

	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"notes", r.writeNotes}, // first, because a missing section of the CHANGELOG is the most likely error
		{"programs", func() error { return r.buildPrograms(ctx) }}, {"images", r.writeImages}, {"charts", r.packCharts},
		{"installers", r.writeInstallers},
		{"manifests", r.writeManifests}, {"deploy", r.packDeploy}, {"bundle", r.writeBundle},
		{"site", func() error { return r.packSite(ctx) }},
		{"manual pages", func() error { return r.packManualPages(ctx) }},
		{"SBOM", r.writeSBOM}, {"checksums", r.writeChecksums}, {"signature", r.sign},
	} {
		start := time.Now()

		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}

		logf("%s: done in %.1fs", step.name, time.Since(start).Seconds())
	}

	return nil
}

// emptyDist creates the output folder, or deletes the files of an earlier release in it. If the folder has
// other files, emptyDist deletes nothing and returns an error.
func (r *release) emptyDist() error {
	entries, err := os.ReadDir(r.dist)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read %s: %w", r.dist, err)
	}

	isReleaseFile := func(e os.DirEntry) bool {
		return strings.Contains(e.Name(), "hyperfleet") || strings.HasPrefix(e.Name(), "bootstrap-service-") ||
			strings.HasPrefix(e.Name(), "pvesim-") ||
			slices.Contains([]string{sumsFile, signatureFile, notesFile, "site"}, e.Name())
	}

	for _, entry := range entries {
		if !isReleaseFile(entry) {
			return fmt.Errorf("empty %s: %s is not a release file: set another folder", r.dist, r.file(entry.Name()))
		}
	}

	if err := os.RemoveAll(r.dist); err != nil {
		return fmt.Errorf("empty %s: %w", r.dist, err)
	}

	//nolint:gosec // all users can read a release
	if err := os.MkdirAll(r.dist, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", r.dist, err)
	}

	return nil
}

// plainVersion returns the version without the v, as charts and packages use it.
func (r *release) plainVersion() string { return strings.TrimPrefix(r.version, "v") }

// imageName returns the full name of an image, with the registry.
func (r *release) imageName(name string) string {
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
