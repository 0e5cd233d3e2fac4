// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Limits of a download.
const (
	maxDownload        = 2 << 30
	downloadAttempts   = 6
	downloadRetryDelay = time.Second
	downloadTimeout    = 30 * time.Minute
	// stallTimeout ends an attempt that receives no data.
	stallTimeout     = time.Minute
	progressInterval = 10 * time.Second
)

// install downloads and unpacks the runner if the image does not contain it. It does nothing if the platform
// needs no program.
func (s *Service) install(ctx context.Context, cfg *guest.Config) error {
	program := platformFor(cfg.Platform).programPath(cfg)
	if program == "" {
		return nil
	}

	dir, programFile := s.path(cfg.Runner.InstallPath), s.path(program)

	if info, err := os.Stat(programFile); err == nil && info.Mode().IsRegular() {
		if err = s.checkVersion(ctx, cfg); err == nil {
			return nil
		}

		s.log.Info("the runner in the image is replaced", "reason", err.Error())
	}

	switch {
	case cfg.Runner.Program != "":
		return newFailure(guest.ReasonDownloadFailed, "the image has no %s: install the runner in it, or fix the template's program",
			program)
	case cfg.Runner.DownloadURL == "":
		return newFailure(guest.ReasonDownloadFailed, "the image has no runner at %s, and runner.download_url is missing",
			cfg.Runner.InstallPath)
	case cfg.Runner.DownloadSHA256 == "":
		return newFailure(guest.ReasonDownloadFailed, "runner.download_sha256 is missing: set it to the SHA-256 of the download")
	}

	s.reporter.reportPhase(guest.PhaseDownloading, "runner from "+formatSource(cfg.Runner.DownloadURL))

	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the runner's user must access it
		return newFailure(guest.ReasonDownloadFailed, "create install path: %w", err)
	}

	file, err := s.download(ctx, cfg, filepath.Dir(dir))
	if err != nil {
		return newFailure(guest.ReasonDownloadFailed, "download runner: %w", err)
	}

	defer s.removeAll(file)

	if cfg.Runner.Version != "" { // files of another release must not remain
		if err := removeRelease(dir); err != nil {
			return newFailure(guest.ReasonDownloadFailed, "replace the image's runner: %w", err)
		}
	}

	if err := Extract(file, dir); err != nil {
		return newFailure(guest.ReasonDownloadFailed, "unpack runner: %w", err)
	}

	if _, err := os.Stat(programFile); err != nil {
		return newFailure(guest.ReasonDownloadFailed, "the download does not contain %s", cfg.Runner.RunScript)
	}

	if err := s.checkVersion(ctx, cfg); err != nil {
		return newFailure(guest.ReasonDownloadFailed, "the download does not contain the runner's release %s: %w: correct the "+
			"template's downloadUrl or version", cfg.Runner.Version, err)
	}

	return nil
}

// formatSource returns a URL for messages, without its user and its query, which may contain credentials.
func formatSource(text string) string {
	parsed, err := url.Parse(text)
	if err != nil {
		return "an invalid URL"
	}

	return (&url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path}).String()
}

// withoutURL returns the cause of an error of net/url or net/http, which repeats the URL.
func withoutURL(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}

	return err
}

// download downloads the runner to a new file in dir and checks its SHA-256. It returns the path of the file.
func (s *Service) download(ctx context.Context, cfg *guest.Config, dir string) (file string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, downloadTimeout, errors.New("it took more than "+downloadTimeout.String()))
	defer cancel()

	f, err := os.CreateTemp(dir, ".runner-download-*")
	if err != nil {
		return "", fmt.Errorf("create file: %w", err)
	}

	defer func() {
		_ = f.Close()

		if err != nil {
			s.removeAll(f.Name())
		}
	}()

	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
	}

	defer transport.CloseIdleConnections()

	d := &downloader{
		service: s, client: &http.Client{Transport: transport}, url: cfg.Runner.DownloadURL, file: f, sum: sha256.New(),
		progress: progress{start: s.clock.Now(), lastLog: s.clock.Now()},
	}
	if err := d.run(ctx); err != nil {
		return "", err
	}

	if got := hex.EncodeToString(d.sum.Sum(nil)); !strings.EqualFold(got, cfg.Runner.DownloadSHA256) {
		return "", fmt.Errorf("the SHA-256 is %s, expected %s: the file was changed, or runner.download_sha256 is wrong",
			got, cfg.Runner.DownloadSHA256)
	}

	return f.Name(), nil
}

// downloader downloads one file in several attempts. Each attempt resumes where the previous one failed.
type downloader struct {
	service  *Service
	client   *http.Client
	url      string
	file     *os.File
	sum      hash.Hash
	received int64
	total    int64 // -1 if unknown
	etag     string

	progress progress
}

// errTerminal marks errors after which a retry cannot succeed.
var errTerminal = errors.New("not retried")

// run downloads the file in up to downloadAttempts attempts, with a delay that doubles. Each attempt
// continues where the last one ended.
func (d *downloader) run(ctx context.Context) error {
	wait := downloadRetryDelay

	for attempt := 1; ; attempt++ {
		err := d.runOnce(ctx)
		if err == nil {
			return nil
		}

		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		if errors.Is(err, errTerminal) || attempt == downloadAttempts {
			return fmt.Errorf("after %d attempts and %d bytes: %w", attempt, d.received, err)
		}

		d.service.log.Warn("the download failed and is retried", "attempt", attempt, "bytes", d.received, "error", err.Error())

		if err := sleep(ctx, d.service.clock, wait); err != nil {
			return err
		}

		wait *= 2
	}
}

// runOnce makes one attempt. If earlier attempts have received a part of the file, it requests only the
// rest.
func (d *downloader) runOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, http.NoBody)
	if err != nil {
		return fmt.Errorf("create request: %w (%w)", withoutURL(err), errTerminal)
	}

	if d.received > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(d.received, 10)+"-")

		if d.etag != "" {
			req.Header.Set("If-Range", d.etag)
		}
	}

	resp, err := d.client.Do(req)
	if err != nil {
		return fmt.Errorf("send request to %s: %w", formatSource(d.url), withoutURL(err))
	}

	defer func() { _ = resp.Body.Close() }()

	if err := d.checkResponse(resp); err != nil {
		return err
	}

	return d.copyBody(cancel, resp.Body)
}

// checkResponse decides from the status and the headers whether to resume (nil), start again (nil, after a
// reset), retry (a transient error) or stop (an error with errTerminal).
func (d *downloader) checkResponse(resp *http.Response) error {
	switch code := resp.StatusCode; {
	case code == http.StatusPartialContent && d.received > 0 &&
		strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(d.received, 10)+"-"):
		return nil
	case code == http.StatusOK:
		if err := d.reset(); err != nil {
			return err
		}

		d.total, d.etag = resp.ContentLength, resp.Header.Get("ETag")
		if strings.HasPrefix(d.etag, "W/") {
			d.etag = ""
		}

		if d.total > maxDownload {
			return fmt.Errorf("the file has %d bytes, more than the limit of %d (%w)", d.total, int64(maxDownload), errTerminal)
		}

		return nil
	case code == http.StatusRequestedRangeNotSatisfiable, code == http.StatusPartialContent:
		return errors.Join(fmt.Errorf("the server responded %s", resp.Status), d.reset())
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		return fmt.Errorf("the server responded %s", resp.Status)
	default:
		return fmt.Errorf("the server responded %s (%w)", resp.Status, errTerminal)
	}
}

// reset discards all data that was received.
func (d *downloader) reset() error {
	d.received = 0
	d.sum.Reset()

	if err := d.file.Truncate(0); err != nil {
		return fmt.Errorf("truncate file: %w", err)
	}

	if _, err := d.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("rewind file: %w", err)
	}

	return nil
}

// copyBody writes the body to the file. It cancels the request if no data arrives within stallTimeout.
func (d *downloader) copyBody(cancel context.CancelFunc, body io.Reader) error {
	stall := time.AfterFunc(stallTimeout, cancel)
	defer stall.Stop()

	buf := make([]byte, 128<<10)

	for {
		n, err := body.Read(buf)
		if n > 0 {
			stall.Reset(stallTimeout)

			if _, werr := d.file.Write(buf[:n]); werr != nil {
				return fmt.Errorf("write file: %w (%w)", werr, errTerminal)
			}

			_, _ = d.sum.Write(buf[:n])
			d.received += int64(n)

			d.progress.log(d.service, d.received, d.total)

			if d.received > maxDownload {
				return fmt.Errorf("the file has more than the limit of %d bytes (%w)", int64(maxDownload), errTerminal)
			}
		}

		switch {
		case errors.Is(err, io.EOF) && d.total >= 0 && d.received < d.total:
			return io.ErrUnexpectedEOF
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read response: %w", err)
		}
	}
}

// progress logs the progress of a download after each tenth, and at least every progressInterval.
type progress struct {
	start, lastLog time.Time
	tenth          int64
}

// log logs the progress for each tenth of the file, and at least every progressInterval.
func (p *progress) log(s *Service, got, total int64) {
	now := s.clock.Now()
	tenth := int64(0)

	if total > 0 {
		tenth = got * 10 / total
	}

	if tenth == p.tenth && now.Sub(p.lastLog) < progressInterval {
		return
	}

	p.lastLog, p.tenth = now, tenth
	attrs := []any{"bytes", got}

	if total > 0 {
		attrs = append(attrs, "percent", got*100/total)
	}

	if elapsed := now.Sub(p.start); elapsed > 0 {
		attrs = append(attrs, "bytesPerSecond", int64(float64(got)/elapsed.Seconds()))
	}

	s.log.Info("hyperfleet: downloading the runner", attrs...)
}
