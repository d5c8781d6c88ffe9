package app_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// exposed returns the lines that a program shows at /metrics.
func exposed(ctx context.Context, addr string) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/metrics: %s", addr, res.Status)
	}
	var list []string
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		list = append(list, lines.Text())
	}
	return list, lines.Err()
}

// readMetrics returns the samples of a program, by name with labels.
func readMetrics(ctx context.Context, addr string) (map[string]float64, error) {
	lines, err := exposed(ctx, addr)
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for _, line := range lines {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ') // labels may have spaces
		if values[line[:max(at, 0)]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			return nil, fmt.Errorf("%s/metrics: %q: %w", addr, line, err)
		}
	}
	return values, nil
}

// readMetric returns one sample of a program; name includes labels.
func readMetric(ctx context.Context, addr, name string) (float64, error) {
	values, err := readMetrics(ctx, addr)
	if err != nil {
		return 0, err
	}
	v, ok := values[name]
	if !ok {
		return 0, fmt.Errorf("%s has no metric %s", addr, name)
	}
	return v, nil
}

// scrape is readMetric of a server that must show the metric.
func scrape(t testing.TB, addr, name string) float64 {
	t.Helper()
	v, err := readMetric(t.Context(), addr, name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
